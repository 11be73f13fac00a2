//! An RGB image as a PNG file.
//!
//! Source: the PNG specification, second edition (ISO/IEC 15948): eight bits a channel, no filter, one IDAT chunk.

use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// `pixels`: rows from the top, three bytes a pixel; `size`: width and height.
///
/// # Errors
/// If the compressor refuses, which a vector never makes it do.
pub(crate) fn encode(pixels: &[u8], size: (u32, u32)) -> io::Result<Vec<u8>> {
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::best());
    for row in pixels.chunks(size.0 as usize * 3) {
        // Filter 0: bytes as they are.
        packed.write_all(&[0])?;
        packed.write_all(row)?;
    }
    let mut head = [size.0.to_be_bytes(), size.1.to_be_bytes()].concat();
    // Eight bits, colour type RGB, and the one method each of compression, filter and order.
    head.extend([8, 2, 0, 0, 0]);
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut file, b"IHDR", &head);
    chunk(&mut file, b"IDAT", &packed.finish()?);
    chunk(&mut file, b"IEND", &[]);
    Ok(file)
}

/// Length, name, data, and the CRC of name and data.
fn chunk(file: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    let mut crc = flate2::Crc::new();
    crc.update(name);
    crc.update(data);
    file.extend((data.len() as u32).to_be_bytes());
    file.extend(name);
    file.extend(data);
    file.extend(crc.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_image_has_the_chunks_of_the_specification() {
        let file = encode(&[255, 0, 0], (1, 1)).unwrap();
        let hex: String = file.iter().map(|b| format!("{b:02x}")).collect();
        // Signature, then IHDR of 1 x 1 in RGB with the CRC that libpng writes.
        let start = "89504e470d0a1a0a0000000d49484452000000010000000108020000009077 53de";
        assert!(hex.starts_with(&start.replace(' ', "")), "{hex}");
        assert!(hex.ends_with("0000000049454e44ae426082"), "{hex}");
    }
}

//! Blocks that an answer's end cuts short.

use super::*;

#[test]
fn a_block_without_a_second_slot_teaches_no_pairs() -> Result<()> {
    let mut config = config(Layout::L1);
    let mut blocks = blocks(Alignment::Shifted).slice(0..1);
    blocks.weights[1..].fill(0.0);
    blocks.rated[1..].fill(0.0);
    let mut loss = |kl: f64| -> Result<f32> {
        config.kl = kl;
        let net = net(&config, Alignment::Shifted, 2.0)?;
        let loss = net.loss(&pack(), &blocks, Place::end(1.0))?;
        Ok(loss.to_scalar()?)
    };
    assert_eq!(loss(0.3)?, loss(0.0)?);
    Ok(())
}

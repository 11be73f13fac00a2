//! Reading tensors as slices.

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor};
use std::ops::{Deref, Range};

/// Read access to a contiguous f32 tensor in host memory.
pub(super) struct View<G> {
    storage: G,
    span: Range<usize>,
}

/// Locks a tensor for reading.
pub(super) fn view(tensor: &Tensor) -> Result<View<impl Deref<Target = Storage> + '_>> {
    let (storage, layout) = tensor.storage_and_layout();
    let span = span(layout)?;
    match &*storage {
        Storage::Cpu(CpuStorage::F32(_)) => Ok(View { storage, span }),
        _ => candle_core::bail!("training runs in f32 on the cpu"),
    }
}

impl<G: Deref<Target = Storage>> View<G> {
    pub(super) fn slice(&self) -> &[f32] {
        match &*self.storage {
            Storage::Cpu(CpuStorage::F32(values)) => &values[self.span.clone()],
            _ => unreachable!("checked when the view was made"),
        }
    }
}

/// The values behind `storage`, as the forward pass of a custom operation receives them.
pub(super) fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    Ok(&storage.as_slice::<f32>()?[span(layout)?])
}

fn span(layout: &Layout) -> Result<Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(start..end),
        None => candle_core::bail!("a contiguous tensor is needed, got {layout:?}"),
    }
}

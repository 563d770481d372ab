//! The outputs of a stream: pinned memory for encoded batches, which stores read.

use std::fmt;
use std::sync::Arc;

use super::shared::{OutputMemory, StreamLane};
use crate::contract::EngineError;
use crate::contract::stream::BatchOutput;
use crate::cuda::arena::Region;

/// The output of a stream: an encoded batch, in memory of the stream.
pub(super) struct CudaOutput {
    shared: Arc<StreamLane>,
    /// The memory of this output; `None` after the drop has returned it to the stream.
    memory: Option<OutputMemory>,
    len: usize,
}

impl fmt::Debug for CudaOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaOutput")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl CudaOutput {
    /// Takes memory for an encoded batch. Blocks until an output is free. All of the memory is initialised.
    ///
    /// # Errors
    /// No output will ever be free, or the lane of the stream is not used any more.
    pub(super) fn take(shared: &Arc<StreamLane>) -> Result<Self, EngineError> {
        let mut memory = shared.take_output()?;
        if let OutputMemory::Pinned { region, written } = &mut memory
            && !std::mem::replace(written, true)
        {
            let to = shared.output(*region);
            // SAFETY: nothing else uses the region, and no device was told to write it.
            unsafe { to.write_bytes(0, region.len) };
        }
        Ok(Self {
            shared: shared.clone(),
            len: shared.sizing.outputs[0].len,
            memory: Some(memory),
        })
    }

    /// Returns the region of the output in the lane; `None` if the output is pageable memory.
    pub(super) fn region(&self) -> Option<Region> {
        match self.memory {
            Some(OutputMemory::Pinned { region, .. }) => Some(region),
            _ => None,
        }
    }

    /// Returns the number of the output's memory among the outputs of the stream; `None` if it is pageable memory.
    pub(super) fn number(&self) -> Option<usize> {
        let region = self.region()?;
        let mut outputs = self.shared.sizing.outputs.iter();
        outputs.position(|output| *output == region)
    }

    /// Limits the output to its first `len` bytes, which are the batch.
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns the number of bytes of the output: all bytes of its memory, until the output is
    /// [truncated](Self::truncate).
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Replaces pinned memory that a broken device may still be writing by pageable memory.
    pub(super) fn replace(&mut self) -> Result<(), EngineError> {
        if let Some(memory) = self.memory.take() {
            self.memory = Some(self.shared.replace_output(memory)?);
        }
        Ok(())
    }

    fn address(&self) -> *mut u8 {
        match &self.memory {
            Some(OutputMemory::Pinned { region, .. }) => self.shared.output(*region),
            _ => std::ptr::dangling_mut(),
        }
    }
}

impl AsRef<[u8]> for CudaOutput {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            None => &[],
            Some(OutputMemory::Pageable(bytes)) => &bytes[..self.len],
            // SAFETY: the bytes are the first of the region, all of which was written at some time. Nothing
            // else uses it. The host has synchronised with all writes of the device before the batch was
            // given to the application.
            Some(OutputMemory::Pinned { .. }) => unsafe {
                std::slice::from_raw_parts(self.address(), self.len)
            },
        }
    }
}

impl AsMut<[u8]> for CudaOutput {
    fn as_mut(&mut self) -> &mut [u8] {
        let (address, len) = (self.address(), self.len);
        match &mut self.memory {
            None => &mut [],
            Some(OutputMemory::Pageable(bytes)) => &mut bytes[..len],
            // SAFETY: as for the shared slice. `&mut self` excludes other uses.
            Some(OutputMemory::Pinned { .. }) => unsafe {
                std::slice::from_raw_parts_mut(address, len)
            },
        }
    }
}

impl Drop for CudaOutput {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.shared.give_output(memory);
        }
    }
}

impl BatchOutput for CudaOutput {
    /// All outputs are scarce. Pageable memory that replaces pinned memory after a device was lost counts as
    /// scarce, too.
    fn is_scarce(&self) -> bool {
        true
    }
}

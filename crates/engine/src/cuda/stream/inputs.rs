//! The free inputs of a stream. The first is allocated with the lane, the others on a thread of their own
//! while the first is filled: the system takes long to lock pages.
//!
//! ```text
//! for each further input
//!     allocate pinned memory; out of memory: free idle lanes, and allocate again
//!     failed: the stream has fewer inputs; end
//!     the input is free
//! the lane is dropped: end the thread, and free the memory with the lane
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::contract::stream::Returned;
use crate::cuda::device::Device;
use crate::cuda::driver::{DriverError, Fault, PinnedMemory, PinnedSpan, PinnedUse};
use crate::cuda::lanes::Devices;

/// The memory of an input.
#[derive(Debug)]
pub(super) struct InputMemory {
    pub(super) number: usize,
    pub(super) pinned: PinnedSpan,
    /// Whether the memory holds the fill value in all bytes that nothing else was written to: in pinned
    /// memory, and on the device.
    pub(super) filled: bool,
    pub(super) padded_on_device: bool,
}

impl InputMemory {
    fn new(number: usize, pinned: PinnedSpan) -> Self {
        Self {
            number,
            pinned,
            filled: false,
            padded_on_device: false,
        }
    }
}

/// The free inputs, and the inputs that are being allocated.
#[derive(Debug)]
pub(super) struct Inputs {
    state: Mutex<InputsState>,
}

#[derive(Debug)]
struct InputsState {
    /// The free inputs. Inputs take turns, so that each is used.
    free: VecDeque<InputMemory>,
    /// The number of inputs that are being allocated.
    coming: usize,
    /// The number of inputs that exist, free or not.
    all: usize,
    /// The allocations of all inputs but the first.
    later: Vec<PinnedMemory>,
    /// Whether the lane is being dropped.
    is_ended: bool,
    thread: Option<JoinHandle<()>>,
}

/// The place and the size of the inputs that are allocated later.
#[derive(Debug)]
pub(super) struct LaterInputs {
    pub(super) devices: Arc<Devices>,
    pub(super) device: Arc<Device>,
    pub(super) returned: Arc<Returned>,
    /// The number of inputs without the first.
    pub(super) count: usize,
    /// The length of each, in bytes.
    pub(super) len: usize,
}

impl Inputs {
    /// Returns the inputs of a stream whose `first` is allocated.
    pub(super) fn new(first: PinnedSpan) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(InputsState {
                free: VecDeque::from([InputMemory::new(0, first)]),
                coming: 0,
                all: 1,
                later: Vec::new(),
                is_ended: false,
                thread: None,
            }),
        })
    }

    /// Begins to allocate the `later` inputs on a thread of its own. If no thread can be started, or memory
    /// cannot be allocated, the stream has fewer inputs.
    pub(super) fn allocate(self: &Arc<Self>, later: LaterInputs) {
        if later.count == 0 {
            return;
        }
        let mut state = self.lock();
        state.coming = later.count;
        let inputs = self.clone();
        let thread = std::thread::Builder::new().name("zarrs_cuda pinned".to_string());
        match thread.spawn(move || inputs.allocate_all(&later)) {
            Ok(thread) => state.thread = Some(thread),
            Err(error) => {
                state.coming = 0;
                tracing::warn!(%error, "no thread to allocate buffers of a stream, which has fewer of them");
            }
        }
    }

    fn allocate_all(&self, later: &LaterInputs) {
        let is_wanted = || {
            let state = self.lock();
            state.coming > 0 && !state.is_ended
        };
        while is_wanted() {
            match later.allocate_one() {
                Ok(memory) => {
                    let mut state = self.lock();
                    let pinned = PinnedSpan {
                        memory,
                        offset: 0,
                        len: later.len,
                    };
                    let input = InputMemory::new(state.all, pinned);
                    state.later.push(memory);
                    state.free.push_back(input);
                    state.all += 1;
                    state.coming -= 1;
                }
                Err(error) => {
                    let mut state = self.lock();
                    tracing::warn!(
                        %error,
                        inputs = state.all,
                        "a stream has fewer buffers than it was planned with"
                    );
                    state.coming = 0;
                }
            }
            later.returned.came_back();
        }
    }

    /// Takes a free input; `None` if none is free. [`Returned`] tells when an input comes back, or was allocated.
    pub(super) fn take(&self) -> Option<InputMemory> {
        self.lock().free.pop_front()
    }

    pub(super) fn give(&self, memory: InputMemory) {
        self.lock().free.push_back(memory);
    }

    /// Returns the number of inputs that exist or are being allocated.
    pub(super) fn count(&self) -> usize {
        let state = self.lock();
        state.all + state.coming
    }

    /// Waits until no input is being allocated.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        while self.lock().coming > 0 {
            std::thread::yield_now();
        }
    }

    /// Ends the thread that allocates inputs, and returns the allocations. The device
    /// [returns calls](Device::returns_calls): otherwise the thread may never end, or does not exist.
    pub(super) fn end(&self) -> Vec<PinnedMemory> {
        let mut state = self.lock();
        state.is_ended = true;
        let thread = state.thread.take();
        drop(state);
        if let Some(thread) = thread
            // The thread itself may drop the last owner of the lane, when it has allocated all.
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::warn!("a thread that allocates buffers of a stream panicked");
        }
        std::mem::take(&mut self.lock().later)
    }

    fn lock(&self) -> MutexGuard<'_, InputsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LaterInputs {
    fn allocate_one(&self) -> Result<PinnedMemory, DriverError> {
        match self.try_allocate() {
            Err(error) if error.fault == Fault::OutOfMemory => {
                // Idle lanes may hold the missing memory.
                self.devices.release_idle();
                self.try_allocate()
            }
            allocated => allocated,
        }
    }

    fn try_allocate(&self) -> Result<PinnedMemory, DriverError> {
        let device = &*self.device;
        let entered = device.enter()?;
        // The host encodes a batch that the device failed to encode.
        let allocate = || (device.driver()).allocate_pinned(self.len.max(1), PinnedUse::Both);
        let allocated = device.watch(device.near(allocate));
        drop(entered);
        allocated
    }
}

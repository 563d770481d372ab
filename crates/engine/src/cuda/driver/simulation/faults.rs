//! Faults that tests inject, and the counts that say where.

use std::fmt;

use zarrs_cuda_emulator::device::Kind;

use super::state::Failure;
use crate::cuda::driver::Fault;

/// A fault to inject. Numbers count from 0 since the simulation was made: see [`Counts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inject {
    /// The allocation with this number runs out of memory. Allocations of both kinds are counted together.
    OutOfMemory { allocation: usize },
    /// The allocation with this number runs out of memory. Only allocations of this kind are counted.
    OutOfMemoryOf { kind: Kind, allocation: usize },
    /// The launch, or call of a library, with this number is refused.
    Refused { launch: usize },
    /// The operation with this number fails once, and does nothing. The fault is not a sticky one.
    Failed { operation: usize, fault: Fault },
    /// This call of `enter` fails once, and does nothing. The fault is not sticky.
    NotEntered { enter: usize, fault: Fault },
    /// The context breaks at this operation.
    Sticky { operation: usize },
    /// The device is gone from this operation on.
    Lost { operation: usize },
}

/// How often each was asked for so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that a driver would see: all but `enter`, `leave` and declarations of the host.
    pub operations: usize,
    pub enters: usize,
    pub device_allocations: usize,
    pub pinned_allocations: usize,
    /// Launches and calls of a library.
    pub launches: usize,
}

/// The faults to come.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) injected: Vec<Inject>,
    pub(super) counts: Counts,
    /// Why nothing works any more.
    pub(super) broken: Option<&'static str>,
    /// The names of the operations that failed once.
    pub(super) failed: Vec<String>,
}

impl Faults {
    /// Counts an operation, which may fail, or break everything.
    pub(super) fn operation(&mut self, name: fmt::Arguments<'_>) -> Result<(), Failure> {
        let now = self.counts.operations;
        self.counts.operations += 1;
        for fault in &self.injected {
            let (operation, reason) = match fault {
                Inject::Sticky { operation } => (operation, "an illegal address (injected)"),
                Inject::Lost { operation } => (operation, "the device is lost (injected)"),
                _ => continue,
            };
            if *operation == now && self.broken.is_none() {
                self.broken = Some(reason);
            }
        }
        self.once(name, |injected| match injected {
            Inject::Failed { operation, fault } if *operation == now => Some(*fault),
            _ => None,
        })
    }

    /// Counts an `enter`, which may fail.
    pub(super) fn enter(&mut self, name: fmt::Arguments<'_>) -> Result<(), Failure> {
        let now = self.counts.enters;
        self.counts.enters += 1;
        self.once(name, |injected| match injected {
            Inject::NotEntered { enter, fault } if *enter == now => Some(*fault),
            _ => None,
        })
    }

    /// Fails if the fault of one that was injected says so.
    fn once(
        &mut self,
        name: fmt::Arguments<'_>,
        fault: impl Fn(&Inject) -> Option<Fault>,
    ) -> Result<(), Failure> {
        let Some(fault) = self.injected.iter().find_map(fault) else {
            return Ok(());
        };
        self.failed.push(name.to_string());
        Err(Failure::Fault(fault, format!("{fault:?} (injected)")))
    }

    /// Counts an allocation; `false` if it fails.
    pub(super) fn allocation(&mut self, kind: Kind) -> bool {
        let counts = &mut self.counts;
        let all = counts.device_allocations + counts.pinned_allocations;
        let count = match kind {
            Kind::Device => &mut counts.device_allocations,
            Kind::Pinned => &mut counts.pinned_allocations,
        };
        let own = *count;
        *count += 1;
        !self.injected.iter().any(|fault| match fault {
            Inject::OutOfMemory { allocation } => *allocation == all,
            Inject::OutOfMemoryOf {
                kind: of,
                allocation,
            } => *of == kind && *allocation == own,
            _ => false,
        })
    }

    /// Counts a launch; `false` if it is refused.
    pub(super) fn launch(&mut self) -> bool {
        let now = self.counts.launches;
        self.counts.launches += 1;
        !self.injected.contains(&Inject::Refused { launch: now })
    }

    /// Fails if nothing works any more.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.broken.map_or(Ok(()), |reason| {
            Err(Failure::Fault(Fault::Sticky, reason.to_owned()))
        })
    }
}

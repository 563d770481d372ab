//! A device on which lanes are allocated, and whether the device can still be used.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::driver::{DeviceInfo, Driver, DriverError, Fault};
use super::forks::Process;
use super::numa::Node;
use super::retired::Retired;
use super::slabs::SlabPool;
use super::uses::{Use, Uses};

/// The reason why a device may not be used any more.
#[derive(Debug)]
struct Quarantine {
    reason: String,
    cause: Cause,
}

/// The cause of a quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The context is broken, and does no work any more.
    Broken,
    /// The device returned wrong data. It still does work that was enqueued in other lanes.
    Wrong,
    /// The device did not finish in time, and may still use all memory that it was told to use.
    Hangs,
}

/// A device of this process.
pub(super) struct Device {
    driver: Arc<dyn Driver>,
    /// The reason why nothing on the device may be used any more; empty while the device works.
    quarantine: OnceLock<Quarantine>,
    /// Whether the process is about to end ([`end`](Self::end)).
    ended: AtomicBool,
    /// The uses of all devices.
    uses: Arc<Uses>,
    /// The process that opened the device.
    process: Process,
    /// The node of the machine that the device is near to; `None` if the node makes no difference.
    node: Option<Arc<Node>>,
    /// The memory that its owners have dropped.
    retired: Retired,
    /// The page-locked memory for encoded bytes.
    slabs: Arc<SlabPool>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("info", self.info())
            .field("quarantine", &self.quarantine.get())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Device {
    pub(super) fn new(driver: Arc<dyn Driver>, node: Option<Arc<Node>>, uses: Arc<Uses>) -> Self {
        Self {
            driver,
            uses,
            quarantine: OnceLock::new(),
            ended: AtomicBool::new(false),
            process: Process::default(),
            node,
            retired: Retired::default(),
            slabs: Arc::default(),
        }
    }

    pub(super) fn retired(&self) -> &Retired {
        &self.retired
    }

    pub(super) fn slabs(&self) -> &Arc<SlabPool> {
        &self.slabs
    }

    pub(super) fn node(&self) -> Option<&Node> {
        self.node.as_deref()
    }

    /// Runs `work`, which uses the driver, on a thread of the device's node, where the system finds memory
    /// that is near to the device. Without a node, runs `work` on this thread. The device's context is
    /// current on this thread ([`enter`](Self::enter)).
    pub(super) fn near<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, DriverError> + Send,
    ) -> Result<T, DriverError> {
        let Some(node) = &self.node else {
            return work();
        };
        node.run(|| {
            let entered = self.enter()?;
            let result = work();
            drop(entered);
            result
        })
    }

    /// Returns the driver. The device's context is current on this thread ([`enter`](Self::enter)), unless
    /// the driver's method needs no context.
    pub(super) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        self.driver.device()
    }

    /// Returns the reason why this process cannot use the device; `None` if it can.
    pub(super) fn unusable(&self) -> Option<String> {
        if self.process.forked() {
            return Some(format!(
                "CUDA device {} was opened before this process was forked: a child process cannot use it",
                self.info().ordinal
            ));
        }
        if let Some(quarantine) = self.quarantine.get() {
            return Some(quarantine.reason.clone());
        }
        self.ended.load(Ordering::Acquire).then(|| {
            format!(
                "CUDA device {} is not used any more, because the process is about to end",
                self.info().ordinal
            )
        })
    }

    /// Returns whether the device is in quarantine, and may still use memory that it was told to use.
    pub(super) fn may_still_run(&self) -> bool {
        let quarantine = self.quarantine.get();
        quarantine.is_some_and(|quarantine| quarantine.cause != Cause::Broken)
    }

    /// Returns whether the device is in quarantine because it returned wrong data.
    pub(super) fn returned_wrong_data(&self) -> bool {
        let quarantine = self.quarantine.get();
        quarantine.is_some_and(|quarantine| quarantine.cause == Cause::Wrong)
    }

    /// Returns whether the device is in quarantine because it hangs, or because its context is broken.
    pub(super) fn has_failed(&self) -> bool {
        let quarantine = self.quarantine.get();
        quarantine.is_some_and(|quarantine| quarantine.cause != Cause::Wrong)
    }

    /// Returns whether calls of the driver on other threads return: the device does not hang, the process is
    /// not about to end, and it is no forked child, which does not have these threads.
    pub(super) fn returns_calls(&self) -> bool {
        let quarantine = self.quarantine.get();
        let hangs = quarantine.is_some_and(|quarantine| quarantine.cause == Cause::Hangs);
        !self.process.forked() && !hangs && !self.ended.load(Ordering::Acquire)
    }

    /// Checks that this process can use the device.
    ///
    /// # Errors
    /// The reason why this process cannot use the device.
    pub(super) fn check_usable(&self) -> Result<(), DriverError> {
        self.unusable().map_or(Ok(()), |reason| {
            Err(DriverError {
                operation: "using the device".to_string(),
                device: Some(self.info().ordinal),
                fault: Fault::Sticky,
                reason,
            })
        })
    }

    /// Makes the device's context current on this thread until the guard is dropped.
    pub(super) fn enter(&self) -> Result<Entered<'_>, DriverError> {
        // The use begins before the check, so that no device is ended in between.
        let entering = Uses::begin(&self.uses);
        self.check_usable()?;
        self.watch(self.driver.enter())?;
        Ok(Entered {
            device: self,
            _use: entering,
        })
    }

    /// Returns `result`. Quarantines the device if `result` is an error after which the device is broken, or is
    /// not trusted.
    pub(super) fn watch<T>(&self, result: Result<T, DriverError>) -> Result<T, DriverError> {
        if let Err(error) = &result
            && matches!(error.fault, Fault::Sticky | Fault::Wrong)
            && self.unusable().is_none()
        {
            self.quarantine(error);
        }
        result
    }

    /// Quarantines the device: it is never used again. Its allocations are leaked on purpose, because a
    /// broken context takes no calls, not even to free memory, and a device that returned wrong data is not
    /// trusted to be done with them.
    fn quarantine(&self, error: &DriverError) {
        let cause = match error.fault {
            Fault::Wrong => Cause::Wrong,
            _ => Cause::Broken,
        };
        self.quarantine_since(error, cause);
    }

    /// Quarantines the device because it did not finish in time. Its allocations are leaked on purpose: the
    /// device may still use them.
    pub(super) fn quarantine_hanging(&self, error: &DriverError) {
        self.quarantine_since(error, Cause::Hangs);
    }

    fn quarantine_since(&self, error: &DriverError, cause: Cause) {
        let ordinal = self.info().ordinal;
        let what = match cause {
            Cause::Broken => "an operation failed that breaks its context",
            Cause::Wrong => "it returned wrong data",
            Cause::Hangs => "it did not finish in time",
        };
        let reason = format!(
            "CUDA device {ordinal} is not used any more in this process, since {what}: {error}"
        );
        if self.quarantine.set(Quarantine { reason, cause }).is_ok() {
            tracing::warn!(device = ordinal, %error, "CUDA device quarantined");
        }
    }

    /// Ends the use of the device, because the process is about to end. Allocations that are left are never
    /// freed.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

/// A guard. The device's context is current on this thread until the guard is dropped.
#[derive(Debug)]
pub(super) struct Entered<'a> {
    device: &'a Device,
    _use: Use,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // The context of a broken device has to be left, too: otherwise it stays current on this thread. But
        // a forked child must not call CUDA at all.
        if !self.device.process.forked()
            && let Err(error) = self.device.watch(self.device.driver.leave())
        {
            tracing::warn!(%error, "leaving a CUDA context");
        }
    }
}

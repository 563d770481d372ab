//! Names the process that a file belongs to, in the name or the content of the file.
//!
//! A process is known by its machine, its number and the time of its start, because a machine gives numbers
//! of ended processes to new ones. Only for a process of the same machine can the library find out that it
//! has ended.

use std::fmt;
use std::str::FromStr;

use twox_hash::XxHash3_64;

use zarrs_cuda_engine::process::per_process::PerProcess;

/// A process of some machine. `Display` writes the process as text, and `FromStr` reads that text.
///
/// ```
/// use zarrs_cuda::storage::{Life, Owner};
///
/// // A process leaves its name beside its work, and another process reads it.
/// let name = Owner::this().to_string();
/// let owner: Owner = name.parse().map_err(|()| "this is no process")?;
/// assert_eq!((owner.life(), owner.process()), (Life::Runs, std::process::id()));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The identifier of the running system and of its numbering of processes; 0 if the system does not tell
    /// it.
    machine: u64,
    process: u32,
    /// The time of the start, in units of the system.
    start: u64,
}

/// The answer to whether a process runs.
///
/// ```
/// use zarrs_cuda::storage::{Life, Owner};
///
/// /// Returns whether the work of `owner` may be taken over.
/// fn is_free(owner: &Owner) -> bool {
///     match owner.life() {
///         Life::Ended => true,
///         Life::Runs => false,
///         _ => false, // `Unknown`: the process may run on another machine
///     }
/// }
/// assert!(!is_free(Owner::this()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Life {
    /// The process has certainly ended.
    Ended,
    /// The process runs.
    Runs,
    /// The process is of another machine, the machine was started again, or the system does not tell.
    Unknown,
}

impl Owner {
    /// Returns this process. A forked child is a process of its own.
    #[must_use]
    pub fn this() -> &'static Self {
        static THIS: PerProcess<Owner> = PerProcess::new(|| {
            let process = std::process::id();
            Owner {
                machine: machine().unwrap_or(0),
                process,
                start: state_of(process).map_or(0, |(start, _)| start),
            }
        });
        THIS.get()
    }

    /// Returns whether the process runs.
    #[must_use]
    pub fn life(&self) -> Life {
        let this = Self::this();
        if self == this {
            return Life::Runs;
        }
        if !self.is_of_this_machine() {
            return Life::Unknown;
        }
        match state_of(self.process) {
            Some((start, runs)) if start == self.start && runs => Life::Runs,
            Some(_) => Life::Ended,
            None if has_ended(self.process) => Life::Ended,
            None => Life::Unknown,
        }
    }

    /// Returns whether the process belongs to this machine since its last start, and to the same numbering of
    /// processes.
    #[must_use]
    pub fn is_of_this_machine(&self) -> bool {
        let this = Self::this();
        this.machine != 0 && self.machine == this.machine
    }

    /// Returns the number of the process on its machine.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}-{}", self.machine, self.process, self.start)
    }
}

impl FromStr for Owner {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('-');
        let mut next = || parts.next().ok_or(());
        let machine = u64::from_str_radix(next()?, 16).map_err(|_| ())?;
        let process = next()?.parse().map_err(|_| ())?;
        let start = next()?.parse().map_err(|_| ())?;
        let owner = Self {
            machine,
            process,
            start,
        };
        (owner.to_string() == text).then_some(owner).ok_or(())
    }
}

/// Returns a number that tells apart machines, starts of one machine, and containers with process numbers of
/// their own; `None` if the system does not tell.
#[cfg(target_os = "linux")]
fn machine() -> Option<u64> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let numbering = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let both = [&boot, numbering.to_str()?.as_bytes()].concat();
    Some(XxHash3_64::oneshot(&both))
}

#[cfg(not(target_os = "linux"))]
fn machine() -> Option<u64> {
    None
}

/// Returns when a process started, in clock ticks since the start of the machine, and whether it runs. A
/// process that has ended stays listed until its parent has asked for it.
fn state_of(process: u32) -> Option<(u64, bool)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program is in parentheses, and may itself contain spaces and parentheses.
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_whitespace();
    let runs = !matches!(fields.next()?, "Z" | "X" | "x");
    Some((fields.nth(18)?.parse().ok()?, runs))
}

/// Returns whether no process has this number. A process of another user may be hidden in `/proc`.
#[cfg(unix)]
fn has_ended(process: u32) -> bool {
    let process = i32::try_from(process).ok();
    let process = process.and_then(rustix::process::Pid::from_raw);
    process.is_some_and(|process| {
        rustix::process::test_kill_process(process) == Err(rustix::io::Errno::SRCH)
    })
}

#[cfg(not(unix))]
fn has_ended(_process: u32) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::{Life, Owner};

    #[test]
    fn a_name_says_the_process() {
        let this = Owner::this();
        assert_eq!(this.to_string().parse(), Ok(this.clone()));
        assert_eq!(this.life(), Life::Runs);
        for wrong in ["", "1", "0000000000000001-2", "1-2-3", "0.0"] {
            assert_eq!(wrong.parse::<Owner>(), Err(()), "{wrong}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_what_surely_ended_has_ended() {
        let this = Owner::this();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = child.id();
        let of_child = Owner {
            process,
            start: super::state_of(process).unwrap().0,
            ..this.clone()
        };
        assert_eq!(of_child.life(), Life::Runs);
        let before = Owner {
            start: of_child.start - 1,
            ..of_child.clone()
        };
        assert_eq!(before.life(), Life::Ended, "another process has its number");
        child.kill().unwrap();
        while super::state_of(process).is_some_and(|(_, runs)| runs) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(of_child.life(), Life::Ended, "its parent has not waited");
        child.wait().unwrap();
        assert_eq!(of_child.life(), Life::Ended);
        let elsewhere = Owner {
            machine: this.machine ^ 1,
            ..of_child
        };
        assert_eq!(elsewhere.life(), Life::Unknown);
    }
}

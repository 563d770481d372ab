//! The nodes of a machine whose memory is nearer to some processors and devices than to others.
//!
//! On a machine with several nodes, each node that has a device gets its own copiers, whose threads run on
//! the processors of the node. The pinned memory of a device is allocated by such a thread, too, because the
//! system takes memory of the node of the thread that asks. The caller's own thread is not bound, since the
//! thread belongs to the application.
//!
//! If the node of a device is not known, or makes no difference, the device is used as on a machine with one
//! node.
//!
//! | file of sysfs | what it says |
//! |---|---|
//! | `devices/system/node/online` | the nodes |
//! | `devices/system/node/node<N>/cpulist` | the processors of a node that are online |
//! | `bus/pci/devices/<address>/numa_node` | the node of a device; −1 if the firmware does not say |

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use super::copiers::Copiers;
use super::driver::PciAddress;

/// The folder in which Linux describes the machine.
pub(super) const SYSFS: &str = "/sys";

/// More processors or nodes than any machine has.
const MOST: usize = 8192;

/// A node that has a device.
#[derive(Debug)]
pub(super) struct Node {
    /// The processors of the node that this process may use. The process may also use processors of other
    /// nodes.
    cpus: Vec<usize>,
    pub(super) copiers: Copiers,
}

impl Node {
    fn new(cpus: Vec<usize>) -> Self {
        Self {
            copiers: Copiers::for_processors(cpus.len(), {
                let cpus = cpus.clone();
                move || bind(&cpus)
            }),
            cpus,
        }
    }

    /// Runs `work` on a thread of the node, or on the calling thread if no thread can be started.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let mut work = Some(work);
        let done = thread::scope(|scope| {
            let name = "zarrs_cuda node".to_string();
            let there = thread::Builder::new().name(name).spawn_scoped(scope, || {
                bind(&self.cpus);
                work.take().map(|work| work())
            });
            match there.map(thread::ScopedJoinHandle::join) {
                Ok(Ok(done)) => done,
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                Err(error) => {
                    tracing::debug!(%error, "no thread to allocate memory on a node");
                    None
                }
            }
        });
        match (done, work) {
            (Some(done), _) => done,
            (None, Some(work)) => work(),
            (None, None) => unreachable!("the work was taken by the thread that returned"),
        }
    }
}

/// Returns the node of each device in `devices`, for this process on the machine that `sysfs` describes.
/// `None` if the node is not known or makes no difference.
pub(super) fn nodes(sysfs: &Path, devices: &[Option<PciAddress>]) -> Vec<Option<Arc<Node>>> {
    if devices.iter().all(Option::is_none) {
        return vec![None; devices.len()];
    }
    let mut nodes = BTreeMap::new();
    let of_devices = places(sysfs, &cpus_of_process(), devices);
    let of_devices = of_devices.into_iter().map(|place| {
        let (number, cpus) = place?;
        tracing::debug!(node = number, ?cpus, "the processors of a device's node");
        let node = nodes.entry(number);
        Some(Arc::clone(
            node.or_insert_with(|| Arc::new(Node::new(cpus))),
        ))
    });
    of_devices.collect()
}

/// Returns the node of each device like [`nodes`], for a process that may use the processors `allowed`. A
/// node is returned as its number, and the list of its processors that the process may use.
fn places(
    sysfs: &Path,
    allowed: &[usize],
    devices: &[Option<PciAddress>],
) -> Vec<Option<(usize, Vec<usize>)>> {
    let folder = sysfs.join("devices/system/node");
    let online = read_list(&folder.join("online")).unwrap_or_default();
    let place = |address: &Option<PciAddress>| {
        if online.len() < 2 {
            return None;
        }
        let device = address.as_ref()?.to_string();
        let file = sysfs.join("bus/pci/devices").join(device).join("numa_node");
        // The parse fails for −1, which means that the firmware does not report the node.
        let node: usize = fs::read_to_string(file).ok()?.trim().parse().ok()?;
        let mut cpus = read_list(&folder.join(format!("node{node}/cpulist")))?;
        cpus.retain(|cpu| allowed.contains(cpu));
        let is_some_of_them = !cpus.is_empty() && cpus.len() < allowed.len();
        is_some_of_them.then_some((node, cpus))
    };
    devices.iter().map(place).collect()
}

/// Reads a list such as `0-3,8`, and returns its numbers in ascending order. `None` if the file is no such
/// list.
fn read_list(file: &Path) -> Option<Vec<usize>> {
    let text = fs::read_to_string(file).ok()?;
    let mut list = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST || list.last().is_some_and(|before| *before >= first) {
            return None;
        }
        list.extend(first..=last);
    }
    Some(list)
}

#[cfg(target_os = "linux")]
mod affinity {
    use std::ffi::c_ulong;
    use std::io;

    use super::MOST;

    /// A set of processors, with one bit for each processor.
    type Mask = [c_ulong; MOST / WORD];

    const WORD: usize = c_ulong::BITS as usize;

    /// Returns the processors that the thread `thread` may use; 0 is the calling thread.
    pub(super) fn get(thread: u32) -> io::Result<Vec<usize>> {
        let mut mask: Mask = [0; MOST / WORD];
        // SAFETY: the function writes at most the size of the mask.
        let result = unsafe {
            libc::sched_getaffinity(
                thread.cast_signed(),
                size_of::<Mask>(),
                mask.as_mut_ptr().cast(),
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let is_in = |cpu: &usize| mask[cpu / WORD] >> (cpu % WORD) & 1 == 1;
        Ok((0..MOST).filter(is_in).collect())
    }

    /// Lets the calling thread use only the processors `cpus`.
    pub(super) fn set(cpus: &[usize]) -> io::Result<()> {
        let mut mask: Mask = [0; MOST / WORD];
        for cpu in cpus.iter().filter(|cpu| **cpu < MOST) {
            mask[cpu / WORD] |= 1 << (cpu % WORD);
        }
        // SAFETY: the function reads the mask.
        let result = unsafe { libc::sched_setaffinity(0, size_of::<Mask>(), mask.as_ptr().cast()) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
mod affinity {
    use std::io;

    pub(super) fn get(_thread: u32) -> io::Result<Vec<usize>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn set(_cpus: &[usize]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Returns the processors that the main thread of this process may use, because the application may have
/// bound the calling thread. The list is empty if the system does not report them.
fn cpus_of_process() -> Vec<usize> {
    affinity::get(std::process::id()).unwrap_or_default()
}

/// Binds the calling thread to the processors `cpus`. The thread stays unbound if the system refuses, for
/// example because the processors were taken away from the process.
fn bind(cpus: &[usize]) {
    if let Err(error) = affinity::set(cpus) {
        tracing::debug!(%error, ?cpus, "a thread that is not bound to its node");
    }
}

/// Returns the processors that the calling thread may use.
#[cfg(test)]
pub(super) fn cpus_of_thread() -> Vec<usize> {
    affinity::get(0).unwrap_or_default()
}

/// A made-up machine.
#[cfg(test)]
pub(super) mod made_up {
    use super::*;

    /// Describes the nodes, with their processors, and the devices, with their nodes, in `folder`.
    pub(in crate::cuda) fn machine(folder: &Path, nodes: &[&str], devices: &[(&str, &str)]) {
        let write = |file: String, text: &str| {
            let file = folder.join(file);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, format!("{text}\n")).expect("a file");
        };
        let online = match nodes.len() {
            1 => "0".to_string(),
            count => format!("0-{}", count - 1),
        };
        write("devices/system/node/online".to_string(), &online);
        for (number, cpus) in nodes.iter().enumerate() {
            write(format!("devices/system/node/node{number}/cpulist"), cpus);
        }
        for (address, node) in devices {
            write(format!("bus/pci/devices/{address}/numa_node"), node);
        }
    }

    pub(in crate::cuda) fn address(domain: u32, bus: u32, device: u32) -> PciAddress {
        PciAddress {
            domain,
            bus,
            device,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use super::made_up::{address, machine};
    use super::*;

    const A: &str = "0000:3b:00.0";
    const B: &str = "0000:af:00.0";

    fn devices() -> [Option<PciAddress>; 2] {
        [Some(address(0, 0x3b, 0)), Some(address(0, 0xaf, 0))]
    }

    /// Returns the nodes of devices A and B on a made-up machine, for a process that may use
    /// `allowed`.
    fn found(
        nodes: &[&str],
        numa_nodes: &[(&str, &str)],
        allowed: &[usize],
    ) -> Vec<Option<(usize, Vec<usize>)>> {
        let folder = tempfile::tempdir().expect("a folder");
        machine(folder.path(), nodes, numa_nodes);
        places(folder.path(), allowed, &devices())
    }

    #[test]
    fn each_device_has_the_processors_of_its_node() {
        let all: Vec<usize> = (0..8).collect();
        let node = |number, cpus: &[usize]| Some((number, cpus.to_vec()));
        let two = ["0-1,4-5", "2-3,6-7"];
        assert_eq!(
            found(&two, &[(A, "0"), (B, "1")], &all),
            [node(0, &[0, 1, 4, 5]), node(1, &[2, 3, 6, 7])]
        );
        assert_eq!(
            found(&two, &[(A, "1"), (B, "1")], &all),
            [node(1, &[2, 3, 6, 7]), node(1, &[2, 3, 6, 7])]
        );
        // The process may use fewer: some of a node, none of another.
        assert_eq!(
            found(&two, &[(A, "0"), (B, "1")], &[1, 2, 4]),
            [node(0, &[1, 4]), node(1, &[2])]
        );
        assert_eq!(
            found(&["0-3", "4-7", "8-9"], &[(A, "0"), (B, "1")], &[1, 8]),
            [node(0, &[1]), None]
        );
        // All that it may use: binding would change nothing.
        assert_eq!(found(&two, &[(A, "0"), (B, "1")], &[0, 4]), [None, None]);
    }

    #[test]
    fn an_unknown_node_changes_nothing() {
        let all: Vec<usize> = (0..4).collect();
        let two = ["0-1", "2-3"];
        let second = Some((1, vec![2, 3]));
        // The firmware does not say; there is no such device, node or number.
        for unknown in ["-1", "2", "", "one", "0x1", "99999999999999999999"] {
            let found = found(&two, &[(A, unknown), (B, "1")], &all);
            assert_eq!(found, [None, second.clone()], "{unknown:?}");
        }
        assert_eq!(found(&two, &[(B, "1")], &all), [None, second.clone()]);
        assert_eq!(found(&["0-3"], &[(A, "0"), (B, "0")], &all), [None, None]);
        // Processors that were unplugged, and lists that are none.
        for cpus in ["", "3-2", "0-", "a-b", "0-99999999", "2,1", "1,1", "-1"] {
            let found = found(&[cpus, "2-3"], &[(A, "0"), (B, "1")], &all);
            assert_eq!(found, [None, second.clone()], "{cpus:?}");
        }
        let nothing = tempfile::tempdir().expect("a folder");
        assert_eq!(places(nothing.path(), &all, &devices()), [None, None]);
        assert_eq!(places(nothing.path(), &all, &[None]), [None]);
        assert_eq!(found(&two, &[(A, "0"), (B, "1")], &[]), [None, None]);
    }

    /// sysfs writes numbers in lower case, with leading zeros, and long domains as they are.
    #[test]
    fn addresses_are_written_as_in_sysfs() {
        assert_eq!(address(0, 0xaf, 0).to_string(), B);
        assert_eq!(address(0, 1, 0x1f).to_string(), "0000:01:1f.0");
        assert_eq!(address(0x10000, 0, 0).to_string(), "10000:00:00.0");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn devices_of_a_node_share_its_copiers_and_threads_are_bound() {
        let all = cpus_of_process();
        assert!(!all.is_empty(), "the system does not say");
        let folder = tempfile::tempdir().expect("a folder");
        let two = [all[0].to_string(), "8000".to_string()];
        let two: Vec<&str> = two.iter().map(String::as_str).collect();
        machine(folder.path(), &two, &[(A, "0"), (B, "0")]);
        let found = nodes(folder.path(), &devices());
        if all.len() == 1 {
            eprintln!("the process may use one processor only: no thread is bound");
            assert!(found.iter().all(Option::is_none));
            return;
        }
        let [Some(a), Some(b)] = &found[..] else {
            panic!("{found:?}");
        };
        assert!(Arc::ptr_eq(a, b));
        let mine = cpus_of_thread();
        assert_eq!(a.run(cpus_of_thread), all[..1]);
        assert_eq!(cpus_of_thread(), mine);
        let panics = AssertUnwindSafe(|| a.run(|| panic!("for the test")));
        let panics = std::panic::catch_unwind(panics);
        assert!(panics.is_err());
        // A processor that does not exist: the thread is not bound, and works.
        let gone = Node::new(vec![MOST - 1]);
        assert_eq!(gone.run(cpus_of_thread), mine);
    }
}

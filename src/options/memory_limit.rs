//! Finds the memory that this process may take: the memory of the machine, the limit of its control groups
//! (for example of a scheduler's job or a container), or its own limit of addresses (`ulimit -v`).
//!
//! Source: `proc(5)`, `cgroups(7)`, and the kernel's documentation of both versions of control groups.

#[cfg(any(target_os = "linux", test))]
use std::path::Path;

/// Returns the memory that this process may take, in bytes, or `None` if the system does not report it.
#[cfg(target_os = "linux")]
pub(crate) fn memory_limit() -> Option<usize> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| total(&text));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let addresses = read(Path::new("/proc/self/limits")).and_then(|text| address_space(&text));
    let all = machine.into_iter().chain(addresses);
    all.chain(limits(&groups, read)).min()
}

/// Returns `None`, because the memory is not known on systems other than Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) fn memory_limit() -> Option<usize> {
    None
}

/// Returns the memory of the machine in bytes, from a line such as `MemTotal:       24616232 kB`.
#[cfg(any(target_os = "linux", test))]
fn total(meminfo: &str) -> Option<usize> {
    let mut lines = meminfo.lines();
    let total = lines.find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1 << 10))
}

/// Returns the limit of addresses in bytes: the first number, which is in force, of a line such as `Max
/// address space         204800000            unlimited            bytes`. Returns `None` for `unlimited`.
#[cfg(any(target_os = "linux", test))]
fn address_space(limits: &str) -> Option<usize> {
    let mut lines = limits.lines();
    let limit = lines.find_map(|line| line.strip_prefix("Max address space"))?;
    limit.split_whitespace().next()?.parse().ok()
}

/// Returns the limits, in bytes, of the control groups of this process and of all groups above them. `groups`
/// has a line for each group, `number:controllers:path`. The line of version 2 has no controllers. Inside a
/// container, the path of a group may not exist, but the paths of the groups above it do.
#[cfg(any(target_os = "linux", test))]
fn limits(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Vec<usize> {
    let mut limits = Vec::new();
    for group in groups.lines() {
        let mut parts = group.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, file) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        for above in Path::new(path.trim_start_matches('/')).ancestors() {
            let text = read(&Path::new(root).join(above).join(file));
            // `max`, in version 2, is no limit. Version 1 has a number instead that is larger than the memory
            // of any machine.
            limits.extend(text.and_then(|text| text.trim().parse::<usize>().ok()));
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_has() {
        let text = "MemTotal:       24616232 kB\nMemFree:         1 kB\n";
        assert_eq!(total(text), Some(24_616_232 << 10));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert_eq!(total("MemTotal: many\n"), None);
    }

    #[test]
    fn what_addresses_are_left() {
        let limited = "Limit  Soft  Hard  Units\nMax address space         204800000            unlimited            bytes     \n";
        assert_eq!(address_space(limited), Some(204_800_000));
        let unlimited =
            "Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(address_space(unlimited), None);
        assert_eq!(address_space(""), None);
    }

    #[test]
    fn what_groups_and_those_above_them_allow() {
        let read = |path: &Path| {
            let text = match path.to_str()? {
                "/sys/fs/cgroup/memory.max" => "max\n",
                "/sys/fs/cgroup/job/memory.max" => "16000\n",
                "/sys/fs/cgroup/job/step/memory.max" => "20000\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes" => "9223372036854771712\n",
                "/sys/fs/cgroup/memory/a:b/memory.limit_in_bytes" => "4096\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        assert_eq!(limits("0::/job/step\n", read), [20_000, 16_000]);
        // From within a container.
        assert_eq!(
            limits("0::/../elsewhere\n", |_| Some("7".to_owned())).first(),
            Some(&7)
        );
        assert_eq!(limits("0::/not/there\n", read), [0; 0]);
        let first = "5:devices:/\n4:cpu,memory:/a:b\n0::/\nnonsense\n";
        assert_eq!(limits(first, read), [4096, 9_223_372_036_854_771_712]);
        assert_eq!(limits("", read), [0; 0]);
    }

    #[test]
    fn this_process_has_some() {
        assert_eq!(memory_limit().is_some(), cfg!(target_os = "linux"));
        assert_ne!(memory_limit(), Some(0));
    }
}

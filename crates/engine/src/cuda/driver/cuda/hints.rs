//! Advice to users whose process finds no device.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
};

/// The advice to users whose driver is too old.
pub(super) const UPDATE: &str = "install an NVIDIA driver of version 525 or newer";

/// The variable with the devices that the driver shows to a process.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The advice to users of clusters.
const ASK: &str = "on a cluster, ask for a GPU, for example in SLURM by --gres=gpu:1";

/// Returns the advice for a machine without the driver's library.
pub(super) fn without_driver() -> String {
    let names = fs::read_dir("/dev").into_iter().flatten().flatten();
    without_driver_among(names.map(|entry| entry.file_name()))
}

/// Returns the advice for a machine without the driver's library, and with the device files `names`.
fn without_driver_among(names: impl Iterator<Item = OsString>) -> String {
    let mut names = names.map(|name| name.to_string_lossy().into_owned());
    // A machine with a GPU, a Tegra, and Windows' subsystem for Linux.
    let is_gpu = |name: String| {
        name.starts_with("nvidia") || name.starts_with("nvhost") || name == "nvmap" || name == "dxg"
    };
    if names.any(is_gpu) {
        return format!("{UPDATE}; in a container, start it with its GPUs (--gpus all)");
    }
    format!("this node has no GPU or driver: {ASK}; elsewhere {UPDATE}")
}

/// Returns the reason why the driver shows no device to this process, and advice.
pub(super) fn without_device() -> String {
    without_device_in(env::var_os(VISIBLE).as_deref())
}

/// Returns the reason why the driver shows no device, if the variable has the value `visible`.
fn without_device_in(visible: Option<&OsStr>) -> String {
    let visible = visible.map(OsStr::to_string_lossy);
    match visible.as_deref().map(str::trim) {
        // SLURM sets the name for jobs that have not asked for a GPU.
        Some(value) if value.is_empty() || value.starts_with('-') || value == "NoDevFiles" => {
            format!(
                "{VISIBLE} is {value:?} in the environment, which hides every GPU: unset it, or set it to the numbers of GPUs; {ASK}"
            )
        }
        Some(value) => format!(
            "{VISIBLE} is {value:?} in the environment, and names no GPU of this node; {ASK}"
        ),
        None => format!(
            "the driver shows no GPU to this process: {ASK}; in a container, start it with its GPUs (--gpus all)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_hides_every_gpu_is_named() {
        for value in ["", " ", "-1", "-1,0", "NoDevFiles"] {
            let said = without_device_in(Some(OsStr::new(value)));
            assert!(
                said.contains("hides every GPU") && said.contains(VISIBLE),
                "{said}"
            );
        }
        let said = without_device_in(Some(OsStr::new("7")));
        assert!(said.contains("\"7\"") && !said.contains("hides"), "{said}");
        assert!(!without_device_in(None).contains(VISIBLE));
    }

    #[test]
    fn a_node_without_gpus_is_told_from_one_without_a_library() {
        let advice = |names: &[&str]| without_driver_among(names.iter().map(OsString::from));
        for names in [&[][..], &["null", "nvme0", "nvram"]] {
            assert!(advice(names).contains("--gres=gpu:1"), "{names:?}");
        }
        for name in ["nvidia0", "nvidiactl", "dxg", "nvmap", "nvhost-gpu"] {
            let said = advice(&["null", name]);
            assert!(
                said.contains("--gpus all") && said.contains(UPDATE),
                "{said}"
            );
            assert!(!said.contains("gres"), "{said}");
        }
    }
}

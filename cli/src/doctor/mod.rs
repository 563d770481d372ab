//! `zarrs-cuda doctor`: tells what the machine has, and what a file system promises.

mod apart;
mod filesystem;
mod gpus;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use zarrs_cuda::{Backend, Options};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::open;
use zarrs_cuda_convert::words::bytes_text;

use self::filesystem::FileSystem;
use crate::common::Common;
use crate::outcome::{Outcome, wrapped};
use crate::variables;

/// Say what this machine has, which chains would run where, and what a file system promises
///
/// Names each thing that cannot be used, with the reason. The exit code is 1 if a setting asks for GPUs that cannot be
/// used: a number that names no GPU, the backend cuda without one, or a driver that hangs or crashes.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A directory, whose file system is looked at: files are written there, and deleted
    path: Option<PathBuf>,
    /// For how many seconds a process of its own may look for GPUs
    #[arg(long, value_name = "SECONDS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    // A variable says so, since a program may give the command other arguments than its own. Otherwise such a
    // program would begin itself without end.
    if apart::is_begun() {
        let report = gpus::look(common);
        return Ok(Outcome::new(report.to_string(), report));
    }
    if let Some(path) = &args.path {
        open::must_be_local(path, "doctor looks at a directory's file system")?;
    }
    let columns = common.columns();
    // These options look for no device.
    let machine = zarrs_cuda::machine(&Options::default().with_backend(Backend::Host));
    let mut lines = vec![
        format!("zarrs-cuda {} on {}", env!("CARGO_PKG_VERSION"), system()),
        format!(
            "processors: {} for this process; {} threads are used",
            std::thread::available_parallelism().map_or(1, usize::from),
            common.threads()
        ),
        format!(
            "memory: {} for this process; buffers of one writer may take {}",
            machine
                .memory
                .map_or("unknown".to_string(), |bytes| bytes_text(bytes as u64)),
            bytes_text(common.memory() as u64)
        ),
        format!("huge pages: {}", huge_pages()),
    ];
    let unknown = variables::unknown();
    lines.extend(unknown.iter().cloned());
    // A driver may hang, so these lines come first.
    common.say(wrapped(&lines.join("\n"), columns));

    let found = apart::look(common, Duration::from_secs(args.limit));
    let mut json = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "system": system(),
    });
    for (name, value) in found.members() {
        json[name] = value;
    }
    json["machine"]["memory"] = machine.memory.into();
    json["huge_pages"] = huge_pages().into();
    json["unknown_variables"] = unknown.into();
    let mut lines = found.lines();
    let filesystem = args.path.as_deref().map(FileSystem::look_at);
    if let Some(filesystem) = &filesystem {
        lines.push(format!("\n{filesystem}"));
    }
    json["filesystem"] = filesystem.as_ref().map(FileSystem::json).into();
    let outcome = Outcome::new(wrapped(&lines.join("\n"), columns), json);
    Ok(outcome.with_errors(found.failure().into_iter().collect()))
}

/// Returns the name and version of the operating system.
pub(crate) fn system() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let release = read("/proc/sys/kernel/osrelease");
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model
        .and_then(|line| line.split_once(": "))
        .map(|(_, model)| model);
    let mut system = format!("{} {}", std::env::consts::OS, release.trim());
    if let Some(model) = model {
        system += &format!(", {model}");
    }
    system.trim_end().to_string()
}

fn huge_pages() -> String {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let Ok(setting) = setting else {
        return "the system does not offer them".to_string();
    };
    let chosen = setting
        .split('[')
        .nth(1)
        .and_then(|rest| rest.split(']').next());
    match chosen {
        Some("never") => {
            "never: large buffers take longer than with `madvise`, which `echo madvise \
                          > /sys/kernel/mm/transparent_hugepage/enabled` sets"
                .to_string()
        }
        Some(chosen) => format!("{chosen}: large buffers are on them"),
        None => setting.trim().to_string(),
    }
}

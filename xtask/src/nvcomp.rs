//! Compares our assumptions about nvCOMP with NVIDIA's files, as far as this is possible without a
//! GPU.

use crate::{Result, cargo, output, pypi, run};
use std::{env, fs, path::Path, process::Command};

/// The files that list the package of each major version, and of each major version of CUDA.
const REQUIREMENTS: [&str; 3] = ["nvcomp.txt", "nvcomp5.txt", "nvcomp13.txt"];

const STAND_IN: &str = "crates/fakes/nvcomp-stand-in/stand_in.c";

/// Compiles the stand-in's functions against the headers of each version, and runs the tests that
/// use the libraries.
pub(crate) fn check() -> Result<()> {
    for requirements in REQUIREMENTS {
        let package = pypi::install(requirements)?.join("nvidia/libnvcomp");
        let version = version(requirements)?;
        let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
        output(
            Command::new(compiler)
                .args(["-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
                .arg("-DNVCOMP_HEADERS")
                .arg(format!("-DSTAND_IN_VERSION={version}"))
                .arg("-isystem")
                .arg(package.join("include"))
                .arg(STAND_IN),
        )?;
        println!("{STAND_IN} agrees with the headers of {version} in {requirements}");
    }
    run(cargo()
        // With the same features as all tests, so that nothing is compiled again.
        .args(["test", "--quiet", "--lib"])
        .args(["cuda::nvcomp::tests::library", "--", "--nocapture"])
        .arg("--test-threads=1")
        .env("ZARRS_CUDA_REQUIRE_NVCOMP", "1"))
}

/// The version in a file of requirements, as the headers write it: 1.2.3 is 1203.
fn version(requirements: &str) -> Result<u32> {
    let file = Path::new("xtask").join(requirements);
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    version_in(&text).ok_or_else(|| format!("{} names no version", file.display()))
}

fn version_in(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("==")?;
    let mut numbers = version.split([' ', '.']).map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    let (major, minor, patch): (u32, u32, u32) = (next()?, next()?, next()?);
    Some(major * 1000 + minor * 100 + patch)
}

#[cfg(test)]
mod tests {
    use super::version_in;

    #[test]
    fn versions_are_read() {
        let text = "# a comment\na-package-cu12==5.3.1.16 --hash=sha256:12ab\n";
        assert_eq!(version_in(text), Some(5301));
        assert_eq!(version_in("a-package==6.0"), None);
        assert_eq!(version_in("a-package>=6.0.0"), None);
    }
}

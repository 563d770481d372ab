//! Finds the library nvCOMP, queries its version, and looks up its functions.

use super::sys;
use crate::cuda::library::Library;
use std::{
    env,
    ffi::{CStr, OsString},
    fmt, fs,
    path::{Path, PathBuf},
};

/// The environment variable that names the file of the library.
pub const VARIABLE: &str = "ZARRS_CUDA_NVCOMP";

/// The major versions of nvCOMP whose functions this crate knows, the preferred version first.
const MAJORS: [u32; 2] = [6, 5];

/// Returns the file name of nvCOMP's library, and its folder in the package on `PyPI`.
#[cfg(not(windows))]
fn file_name(major: u32) -> (String, &'static str) {
    (format!("libnvcomp.so.{major}"), "nvidia/libnvcomp/lib64")
}

#[cfg(windows)]
fn file_name(major: u32) -> (String, &'static str) {
    (format!("nvcomp64_{major}.dll"), "nvidia/libnvcomp/bin")
}

/// The places in which the library is searched.
#[derive(Debug)]
pub struct Search {
    /// A file, and the setting that names the file. If a setting names a file, no other place is searched.
    pub(super) named: Option<(PathBuf, &'static str)>,
    /// The file names that the dynamic loader looks up.
    pub(super) names: Vec<PathBuf>,
    /// The folders that contain Python packages.
    pub(super) packages: Vec<PathBuf>,
}

impl Search {
    /// Returns a search that uses this process's environment variables.
    pub(crate) fn new(option: Option<&Path>) -> Self {
        Self::with(option, |name| env::var_os(name))
    }

    /// Returns a search that uses the environment variables that `variable` returns.
    pub(super) fn with(option: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let named = match option {
            Some(path) => Some((path.into(), "the options")),
            None => variable(VARIABLE).map(|path| (path.into(), VARIABLE)),
        };
        let named = named.map(|(path, who)| (in_home(path, variable("HOME")), who));
        let names = MAJORS.map(|major| file_name(major).0.into());
        let mut packages = Vec::new();
        if let Some(path) = variable("PYTHONPATH") {
            packages.extend(env::split_paths(&path).filter(|entry| !entry.as_os_str().is_empty()));
        }
        for root in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
            if let Some(root) = variable(root) {
                packages.extend(site_packages(Path::new(&root)));
            }
        }
        Self {
            named,
            names: names.into(),
            packages,
        }
    }

    /// Loads the first usable library among the places of this search.
    ///
    /// # Errors
    /// There is no usable library. The error names the files and the reasons.
    pub(crate) fn load(&self) -> Result<Nvcomp, String> {
        if let Some((path, who)) = &self.named {
            if path.is_dir() {
                return Err(format!(
                    "nvCOMP, which {who} named: {} is a folder: name the file of the library{}",
                    path.display(),
                    inside(path)
                        .map_or_else(String::new, |file| format!(", such as {}", file.display()))
                ));
            }
            return Nvcomp::open(path)
                .map_err(|reason| format!("nvCOMP, which {who} named: {reason}"));
        }
        let mut reasons = Vec::new();
        for name in &self.names {
            match Nvcomp::open(name) {
                Ok(nvcomp) => return Ok(nvcomp),
                Err(reason) => reasons.push(reason),
            }
        }
        let mut absent = Vec::new();
        for folder in &self.packages {
            for major in MAJORS {
                let (name, inside) = file_name(major);
                let file = folder.join(inside).join(name);
                if !file.exists() {
                    absent.push(file.display().to_string());
                    continue;
                }
                match Nvcomp::open(&file) {
                    Ok(nvcomp) => return Ok(nvcomp),
                    Err(reason) => reasons.push(reason),
                }
            }
        }
        if self.packages.is_empty() {
            reasons.push("PYTHONPATH, VIRTUAL_ENV and CONDA_PREFIX name no packages".into());
        } else if !absent.is_empty() {
            reasons.push(format!("there is no {}", absent.join(", no ")));
        }
        Err(format!(
            "nvCOMP was not found; the options or {VARIABLE} can name its file. {}",
            reasons.join("; ")
        ))
    }
}

/// Returns `path` with the folder `home` in place of a `~` at its start, which only shells replace.
fn in_home(path: PathBuf, home: Option<OsString>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path,
    }
}

/// Returns a file of nvCOMP in or below `folder`, if one is where its packages have it.
fn inside(folder: &Path) -> Option<PathBuf> {
    let names = MAJORS.into_iter().map(file_name);
    let mut files = names.flat_map(|(name, below)| {
        ["", "lib64", "lib", below].map(|below| folder.join(below).join(&name))
    });
    files.find(|file| file.is_file())
}

/// Returns the package folders of a Python environment, sorted.
fn site_packages(root: &Path) -> Vec<PathBuf> {
    if cfg!(windows) {
        return vec![root.join("Lib").join("site-packages")];
    }
    let lib = root.join("lib");
    let entries = fs::read_dir(&lib).into_iter().flatten().flatten();
    let mut folders: Vec<_> = entries
        .map(|entry| entry.file_name())
        .filter(|name| name.to_string_lossy().starts_with("python3"))
        .map(|name| lib.join(name).join("site-packages"))
        .collect();
    folders.sort();
    folders
}

/// A version of nvCOMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) patch: u32,
}

impl From<u32> for Version {
    fn from(number: u32) -> Self {
        Self {
            major: number / 1000,
            minor: number % 1000 / 100,
            patch: number % 100,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The loaded library nvCOMP. It stays loaded for the life of the process.
#[derive(Debug)]
pub struct Nvcomp {
    pub(super) path: PathBuf,
    pub(super) version: Version,
    pub(super) status_string: Option<sys::GetStatusString>,
    pub(super) zstd: Functions,
    pub(super) deflate: Functions,
    pub(super) lz4: Functions,
}

/// nvCOMP's functions for a format. An error is the name of a missing function.
#[derive(Debug)]
pub(super) struct Functions {
    pub(super) compress: Result<Compress, String>,
    pub(super) decompress: Result<Decompress, String>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Compress {
    pub(super) alignments: sys::GetRequiredAlignments,
    pub(super) temp_size: TempSize,
    pub(super) max_output: sys::GetMaxOutputChunkSize,
    pub(super) run: sys::CompressAsync,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Decompress {
    pub(super) alignments: sys::GetRequiredAlignments,
    pub(super) temp_size: TempSize,
    pub(super) run: sys::DecompressAsync,
}

/// The only function whose arguments depend on the version of nvCOMP.
#[derive(Clone, Copy, Debug)]
pub(super) enum TempSize {
    Five(sys::GetTempSize5),
    Six(sys::GetTempSize6),
}

impl Nvcomp {
    /// Loads the file `path`, or the library that the dynamic loader finds by that name.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        // The sizes and addresses in nvCOMP's tables have 64 bits.
        if usize::BITS != 64 {
            return Err("nvCOMP is for 64-bit processes".into());
        }
        // SAFETY: if the file is nvCOMP, loading it runs only nvCOMP's own code. An attacker who
        // can put another file in this place can also replace this program.
        let library = unsafe { Library::load(path) };
        let library = library.map_err(|reason| {
            // The loader's reason begins with the path in most cases.
            let name = path.display().to_string();
            if reason.starts_with(&name) {
                reason
            } else {
                format!("{name}: {reason}")
            }
        })?;
        let symbols = Symbols { library: &library };

        // SAFETY: this is the type of the function, and it has never changed.
        let properties = unsafe { symbols.function::<sys::GetProperties>("nvcompGetProperties") };
        let get = properties
            .map_err(|symbol| format!("{} is not nvCOMP: it has no {symbol}", path.display()))?;
        let mut properties = sys::Properties::default();
        // SAFETY: the function writes the properties.
        let status = unsafe { get(&raw mut properties) };
        if status != sys::SUCCESS {
            return Err(format!(
                "{} does not tell its version: status {status}",
                path.display()
            ));
        }
        let version = Version::from(properties.version);
        if !MAJORS.contains(&version.major) {
            return Err(format!(
                "{} is nvCOMP {version}, whose functions are not known; 5 and 6 are",
                path.display()
            ));
        }
        // SAFETY: this is the type of the function, and it has never changed. Only error messages use the
        // function: the oldest releases of version 5 may lack it.
        let status_string =
            unsafe { symbols.function::<sys::GetStatusString>("nvcompGetStatusString") }.ok();
        let functions = |name| Functions {
            compress: symbols.compress(name, version).map_err(absent(version)),
            decompress: symbols.decompress(name, version).map_err(absent(version)),
        };
        Ok(Self {
            path: path.into(),
            version,
            status_string,
            zstd: functions("Zstd"),
            deflate: functions("Deflate"),
            lz4: functions("LZ4"),
        })
    }

    /// Returns the path or the name by which the library was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn version(&self) -> Version {
        self.version
    }
}

fn absent(version: Version) -> impl Fn(String) -> String {
    move |symbol| format!("nvCOMP {version} has no function {symbol}")
}

struct Symbols<'a> {
    library: &'a Library,
}

impl Symbols<'_> {
    /// Returns the function `name`. The error is the function's name if the library lacks it.
    ///
    /// # Safety
    /// `T` is the function's type.
    unsafe fn function<T: Copy>(&self, name: &str) -> Result<T, String> {
        // SAFETY: the caller promises that the type is right.
        let symbol = unsafe { self.library.get(name) };
        symbol.ok_or_else(|| name.to_owned())
    }

    fn temp_size(&self, prefix: &str, version: Version) -> Result<TempSize, String> {
        // SAFETY: these are the functions' types in these versions. `cargo xtask nvcomp-check`
        // compares them with NVIDIA's headers.
        unsafe {
            if version.major >= 6 {
                let name = format!("{prefix}GetTempSize");
                self.function(&name).map(TempSize::Six)
            } else {
                let name = format!("{prefix}GetTempSizeAsync");
                self.function(&name).map(TempSize::Five)
            }
        }
    }

    fn compress(&self, name: &str, version: Version) -> Result<Compress, String> {
        let prefix = format!("nvcompBatched{name}Compress");
        // SAFETY: as for `GetTempSize`.
        unsafe {
            Ok(Compress {
                alignments: self.function(&format!("{prefix}GetRequiredAlignments"))?,
                temp_size: self.temp_size(&prefix, version)?,
                max_output: self.function(&format!("{prefix}GetMaxOutputChunkSize"))?,
                run: self.function(&format!("{prefix}Async"))?,
            })
        }
    }

    fn decompress(&self, name: &str, version: Version) -> Result<Decompress, String> {
        let prefix = format!("nvcompBatched{name}Decompress");
        // SAFETY: as for `GetTempSize`.
        unsafe {
            Ok(Decompress {
                alignments: self.function(&format!("{prefix}GetRequiredAlignments"))?,
                temp_size: self.temp_size(&prefix, version)?,
                run: self.function(&format!("{prefix}Async"))?,
            })
        }
    }
}

/// Returns a description of a status, with nvCOMP's own text if nvCOMP has one.
pub(super) fn describe(strings: Option<sys::GetStatusString>, status: sys::Status) -> String {
    if let Some(strings) = strings {
        // SAFETY: the function accepts any number.
        let text = unsafe { strings(status) };
        if !text.is_null() {
            // SAFETY: the text is the library's own, NUL-terminated, and never freed.
            let text = unsafe { CStr::from_ptr(text) };
            return format!("status {status}: {}", text.to_string_lossy());
        }
    }
    format!("status {status}")
}

//! Shared libraries that are loaded at run time: the CUDA driver, and nvCOMP.

use std::path::Path;

/// The reason why no library can be loaded without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub(crate) const ABSENT: &str =
    "zarrs_cuda was compiled without its feature `cuda`: enable it in Cargo.toml";

/// A loaded library. It stays loaded for the life of the process, because its code may run until then.
#[derive(Debug)]
pub(super) struct Library(Loaded);

#[cfg(feature = "cuda")]
type Loaded = std::mem::ManuallyDrop<libloading::Library>;
#[cfg(not(feature = "cuda"))]
type Loaded = std::convert::Infallible;

#[cfg(feature = "cuda")]
impl Library {
    /// Loads the file `path`, or the library that the dynamic loader finds by that name.
    ///
    /// # Errors
    /// The loader's reason.
    ///
    /// # Safety
    /// The initialisers of the library may run in this process.
    pub(super) unsafe fn load(path: &Path) -> Result<Self, String> {
        use std::error::Error as _;

        // SAFETY: the caller promises that the initialisers may run.
        let library = unsafe { libloading::Library::new(path) };
        let library = library.map_err(|error| {
            error
                .source()
                .map_or_else(|| error.to_string(), ToString::to_string)
        })?;
        Ok(Self(Loaded::new(library)))
    }

    /// Returns the library `name` if this process has loaded it. Does not load it.
    pub(super) fn loaded(name: &str) -> Option<Self> {
        #[cfg(target_os = "linux")]
        let library = {
            use libloading::os::unix;
            // SAFETY: with this flag no library is loaded, so no initialiser runs.
            unsafe { unix::Library::open(Some(name), unix::RTLD_LAZY | libc::RTLD_NOLOAD) }.ok()?
        };
        #[cfg(windows)]
        let library = libloading::os::windows::Library::open_already_loaded(name).ok()?;
        // CUDA runs on no other system.
        #[cfg(not(any(target_os = "linux", windows)))]
        let library = None::<libloading::Library>.filter(|_| !name.is_empty())?;
        Some(Self(Loaded::new(library.into())))
    }

    /// Returns the function `name`, or `None` if the library does not have the function.
    ///
    /// # Safety
    /// `T` is the function's type.
    pub(super) unsafe fn get<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: the caller promises that the type is right.
        let symbol = unsafe { self.0.get::<T>(name) };
        // The library stays loaded, so that the function may outlive this reference.
        symbol.ok().map(|symbol| *symbol)
    }
}

#[cfg(not(feature = "cuda"))]
impl Library {
    /// Returns an error, since no library can be loaded.
    ///
    /// # Errors
    /// Always, because the package was compiled without the feature `cuda`.
    pub(super) unsafe fn load(_: &Path) -> Result<Self, String> {
        Err(ABSENT.to_string())
    }

    pub(super) unsafe fn get<T: Copy>(&self, _: &str) -> Option<T> {
        match self.0 {}
    }
}

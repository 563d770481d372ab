//! Decides whether an array may use CUDA devices, and which. No device is used that nobody asked for.
//!
//! `cuInit` makes CUDA unusable in every process that is forked afterwards, and a context takes some hundreds
//! of MB of a device. So the driver's library is not even loaded before somebody has asked for a device:
//!
//! ```text
//! the backend = the options, else ZARRS_CUDA_BACKEND, else auto
//! if the backend is the host: no device
//! if neither the options, nor ZARRS_CUDA_DEVICES, nor ZARRS_CUDA_BACKEND, nor `warm_up` asked: no device
//! the devices = the options, else ZARRS_CUDA_DEVICES, else the devices of `warm_up`,
//!               else the device of the thread's current context,
//!               else LOCAL_RANK modulo the number of visible devices, else device 0
//! ```
//!
//! The decision is made when an array or a writer is opened, and stays.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use crate::options::{Backend, Options};
use zarrs_cuda_engine::cuda;
use zarrs_cuda_engine::process::per_process::PerProcess;

/// The environment variable that asks for devices: their numbers with commas between them, or `all`.
const DEVICES: &str = "ZARRS_CUDA_DEVICES";

/// The environment variable that asks for a backend: `auto`, `host` or `cuda`.
const BACKEND: &str = "ZARRS_CUDA_BACKEND";

/// The number of this process among the processes of its machine. Launchers of distributed jobs set it.
const LOCAL_RANK: &str = "LOCAL_RANK";

/// The reason why an array uses no device, and how to ask for one.
const NOT_ASKED: &str = "no GPU was asked for: ZARRS_CUDA_DEVICES=0 in the environment asks for one, and so do `Options::with_devices` in Rust, `zarrs_cuda.configure` in Python, and `--devices` of the command";

/// The devices that [`warm_up`](crate::warm_up) has made ready in this process.
static WARMED_UP: PerProcess<Mutex<BTreeSet<usize>>> = PerProcess::new(Mutex::default);

/// The decision for one array or one writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Consent {
    pub(super) backend: Backend,
    pub(super) devices: Result<Selected, Refusal>,
}

/// The devices that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selected {
    which: Which,
    /// Whether a user has named the devices by number.
    is_named: bool,
    /// The setting that selected the devices, for users.
    by: Cow<'static, str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    Numbers(Vec<usize>),
    All,
    /// The device whose number is this rank modulo the number of visible devices.
    Rank(usize),
}

/// The reason why no device may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A setting asks for the host, or no setting asks for a device. The text says so to users.
    Host(String),
    /// A setting has a value that cannot be understood. The text names both.
    Wrong(String),
}

/// The world outside the options, which a decision depends on.
struct World<V, C> {
    /// Returns the value of an environment variable.
    variable: V,
    /// Returns the device of the thread's current context.
    current_device: C,
    warmed_up: BTreeSet<usize>,
}

impl Consent {
    /// Decides for an array or a writer that is opened now with `options`.
    pub(crate) fn decide(options: &Options) -> Self {
        Self::decide_in(options, &World::of_process(), false)
    }

    /// Decides like [`decide`](Self::decide) for a caller that asks for devices by the call itself.
    pub(super) fn asked(options: &Options) -> Self {
        Self::decide_in(
            &options.clone().with_backend(Backend::Auto),
            &World::of_process(),
            true,
        )
    }

    /// Returns the decision for the devices of a test, all of which may be used.
    #[cfg(test)]
    pub(super) fn of_test(options: &Options) -> Self {
        let which = options
            .devices()
            .map_or(Which::All, |named| Which::Numbers(named.to_vec()));
        let by = Cow::Borrowed("the test");
        let backend = options.backend();
        let devices = match backend {
            Backend::Host => Err(Refusal::Host("the options asked for the host".to_string())),
            _ => Ok(Selected {
                which,
                is_named: options.devices().is_some(),
                by,
            }),
        };
        Self { backend, devices }
    }

    fn decide_in<V, C>(options: &Options, world: &World<V, C>, asked: bool) -> Self
    where
        V: Fn(&str) -> Option<OsString>,
        C: Fn() -> Option<usize>,
    {
        let backend = match options.backend_setting() {
            Some(backend) => Ok((backend, false)),
            None => world.backend().map(|of_environment| {
                of_environment.map_or((Backend::Auto, false), |backend| (backend, true))
            }),
        };
        let (backend, by_environment) = match backend {
            Ok(backend) => backend,
            Err(wrong) => {
                return Self {
                    backend: Backend::Auto,
                    devices: Err(Refusal::Wrong(wrong)),
                };
            }
        };
        let asked = asked || by_environment || options.asks_for_devices();
        let devices = if backend == Backend::Host {
            let who = if by_environment {
                BACKEND
            } else {
                "the options"
            };
            Err(Refusal::Host(format!("{who} asked for the host")))
        } else {
            world.select(options, asked)
        };
        Self { backend, devices }
    }

    /// Returns the decision that `options` and the environment make, in words for users, and whether it can be
    /// kept on a machine with the devices `found`, or without any for the given reason.
    pub(super) fn verdict(&self, found: Result<&[usize], &str>) -> (bool, String) {
        let selected = match &self.devices {
            Ok(selected) => selected,
            Err(Refusal::Host(why)) => return (true, format!("arrays use no GPU: {why}")),
            Err(Refusal::Wrong(why)) => return (false, why.clone()),
        };
        let (by, is_cuda) = (selected.by(), self.backend == Backend::Cuda);
        let is_there = |number: &&usize| found.is_ok_and(|found| found.contains(number));
        let missing = selected.named().iter().find(|number| !is_there(number));
        let there = match found {
            Ok(found) => format!("the GPUs that can be used are {found:?}"),
            Err(why) => why.to_string(),
        };
        let names = if by.ends_with("options") {
            "name"
        } else {
            "names"
        };
        let lost = if is_cuda {
            "the backend is `cuda`, so every read and every write of an array is refused"
        } else {
            "arrays use no GPU"
        };
        match missing {
            Some(number) => (
                false,
                format!("{lost}: {by} {names} GPU {number}, and {there}"),
            ),
            None if found.is_err() => (!is_cuda, format!("{lost}: {there}")),
            None => match selected.numbers() {
                Err(why) => (!is_cuda, format!("{lost}: {why}")),
                Ok(numbers) => {
                    let numbers = numbers.as_deref().or(found.ok()).unwrap_or_default();
                    // A default may have chosen a device that is too old.
                    if numbers.iter().all(|number| !is_there(&number)) {
                        return (
                            !is_cuda,
                            format!("{lost}: {by} chose GPU {numbers:?}, and {there}"),
                        );
                    }
                    let when = if is_cuda {
                        "for all that a GPU does, or fail"
                    } else {
                        "where one is estimated to be faster"
                    };
                    (
                        true,
                        format!("arrays use the GPUs {numbers:?} {when} (chosen by {by})"),
                    )
                }
            },
        }
    }

    /// Returns the reason why a setting cannot be understood; `None` if all can.
    pub(crate) fn wrong(&self) -> Option<&str> {
        match &self.devices {
            Err(Refusal::Wrong(wrong)) => Some(wrong),
            _ => None,
        }
    }
}

impl Refusal {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Host(text) | Self::Wrong(text) => text,
        }
    }
}

impl Selected {
    /// Returns the numbers of the devices; `None` for all devices.
    ///
    /// # Errors
    /// The reason why the number of visible devices is not known.
    pub(super) fn numbers(&self) -> Result<Option<Vec<usize>>, String> {
        match &self.which {
            Which::All => Ok(None),
            Which::Numbers(numbers) => Ok(Some(numbers.clone())),
            Which::Rank(rank) => {
                let visible = cuda::visible_devices().map_err(|error| error.to_string())?;
                Ok(Some(vec![rank.checked_rem(visible).unwrap_or(0)]))
            }
        }
    }

    /// Returns the numbers of the devices that a user has named.
    pub(super) fn named(&self) -> &[usize] {
        match &self.which {
            Which::Numbers(numbers) if self.is_named => numbers,
            _ => &[],
        }
    }

    /// Returns the setting that selected the devices, in words for users.
    pub(super) fn by(&self) -> &str {
        &self.by
    }
}

impl World<fn(&str) -> Option<OsString>, fn() -> Option<usize>> {
    fn of_process() -> Self {
        let warmed_up = WARMED_UP.get().lock();
        Self {
            variable: |name| std::env::var_os(name),
            current_device: cuda::current_device,
            warmed_up: warmed_up.unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

impl<V, C> World<V, C>
where
    V: Fn(&str) -> Option<OsString>,
    C: Fn() -> Option<usize>,
{
    /// Returns the value of a variable that is set and not empty.
    fn setting(&self, name: &str) -> Option<String> {
        let value = (self.variable)(name)?;
        let value = value.to_string_lossy().trim().to_string();
        (!value.is_empty()).then_some(value)
    }

    /// Returns the backend that the environment asks for, if it asks for one.
    fn backend(&self) -> Result<Option<Backend>, String> {
        let Some(value) = self.setting(BACKEND) else {
            return Ok(None);
        };
        match value.to_ascii_lowercase().as_str() {
            "auto" => Ok(Some(Backend::Auto)),
            "host" => Ok(Some(Backend::Host)),
            "cuda" => Ok(Some(Backend::Cuda)),
            _ => Err(format!(
                "{BACKEND} is {value:?} in the environment, and has to be auto, host or cuda"
            )),
        }
    }

    /// Returns the devices that the environment asks for, if it asks for any.
    fn devices(&self) -> Result<Option<Which>, String> {
        let Some(value) = self.setting(DEVICES) else {
            return Ok(None);
        };
        if value.eq_ignore_ascii_case("all") {
            return Ok(Some(Which::All));
        }
        let numbers: Result<Vec<usize>, _> = value.split(',').map(|n| n.trim().parse()).collect();
        let numbers = numbers.ok().filter(|numbers| {
            let different: BTreeSet<usize> = numbers.iter().copied().collect();
            different.len() == numbers.len()
        });
        let numbers = numbers.ok_or_else(|| {
            format!(
                "{DEVICES} is {value:?} in the environment, and has to be different numbers of devices with commas between them, such as 0,1, or all"
            )
        })?;
        Ok(Some(Which::Numbers(numbers)))
    }

    /// Selects devices, if `asked`, or if the environment or a [`warm_up`](crate::warm_up) has asked.
    fn select(&self, options: &Options, asked: bool) -> Result<Selected, Refusal> {
        let chosen = |which, is_named, by: String| {
            Ok(Selected {
                which,
                is_named,
                by: by.into(),
            })
        };
        let selected = |which, by| chosen(which, false, by);
        let by = options.asked_by().unwrap_or("the options");
        if options.all_devices() {
            return selected(Which::All, by.to_string());
        }
        if let Some(named) = options.devices() {
            return chosen(Which::Numbers(named.to_vec()), true, by.to_string());
        }
        if let Some(which) = self.devices().map_err(Refusal::Wrong)? {
            return chosen(which, true, DEVICES.to_string());
        }
        if !self.warmed_up.is_empty() {
            let which = Which::Numbers(self.warmed_up.iter().copied().collect());
            return selected(which, "`warm_up`".to_string());
        }
        if !asked {
            return Err(Refusal::Host(NOT_ASKED.to_string()));
        }
        if let Some(current) = (self.current_device)() {
            return selected(
                Which::Numbers(vec![current]),
                "the thread's current CUDA context".to_string(),
            );
        }
        match self.setting(LOCAL_RANK).map(|rank| (rank.parse(), rank)) {
            Some((Ok(rank), _)) => selected(Which::Rank(rank), format!("{LOCAL_RANK}={rank}")),
            Some((Err(_), rank)) => Err(Refusal::Wrong(format!(
                "{LOCAL_RANK} is {rank:?} in the environment, and has to be a number: it selects a device where nothing else does"
            ))),
            None => selected(
                Which::Numbers(vec![0]),
                "the default, one device".to_string(),
            ),
        }
    }
}

/// Notes that [`warm_up`](crate::warm_up) has made devices ready: arrays that are opened later may use them.
pub(super) fn note_warm_up(devices: impl IntoIterator<Item = usize>) {
    let mut warmed_up = WARMED_UP
        .get()
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    warmed_up.extend(devices);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decides with these variables, in a process without a context, or with one on a device.
    fn decided(
        options: &Options,
        variables: &[(&str, &str)],
        current: Option<usize>,
        warmed_up: &[usize],
    ) -> Consent {
        let world = World {
            variable: |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            },
            current_device: || current,
            warmed_up: warmed_up.iter().copied().collect(),
        };
        Consent::decide_in(options, &world, false)
    }

    fn selected(consent: &Consent) -> Option<(&Which, &str)> {
        let selected = consent.devices.as_ref().ok()?;
        Some((&selected.which, &selected.by))
    }

    #[test]
    fn no_device_is_selected_unless_somebody_asks() {
        let default = Options::default();
        for options in [
            default.clone(),
            default.clone().with_backend(Backend::Auto),
            default.clone().with_nvcomp("libnvcomp.so.6"),
            default.with_device_memory(1 << 30).with_device_decode(true),
        ] {
            // A launcher, or another library with a context, asks for nothing.
            let consent = decided(&options, &[(LOCAL_RANK, "3"), (DEVICES, "")], Some(1), &[]);
            let Err(Refusal::Host(why)) = &consent.devices else {
                panic!("{consent:?}");
            };
            assert_eq!(consent.backend, Backend::Auto);
            for how in ["with_devices", "configure", "--devices", DEVICES] {
                assert!(why.contains(how), "{why}");
            }
        }
    }

    #[test]
    fn the_nearest_setting_selects_the_device() {
        let named = Options::default().with_devices([5]);
        let cuda = Options::default().with_backend(Backend::Cuda);
        let python = Options::default().with_consent("zarr.config");
        let variables = [(DEVICES, "1, 2"), (LOCAL_RANK, "3")];
        let one = |number| Which::Numbers(vec![number]);
        type Row<'a> = (
            &'a Options,
            &'a [(&'a str, &'a str)],
            Option<usize>,
            &'a [usize],
            Which,
            &'a str,
        );
        let rows: [Row<'_>; 9] = [
            (&named, &variables, Some(4), &[6], one(5), "the options"),
            (
                &cuda,
                &variables,
                Some(4),
                &[6],
                Which::Numbers(vec![1, 2]),
                DEVICES,
            ),
            (
                &cuda,
                &[(DEVICES, "ALL")],
                Some(4),
                &[6],
                Which::All,
                DEVICES,
            ),
            (&cuda, &variables[1..], Some(4), &[6], one(6), "`warm_up`"),
            (&Options::default(), &[], None, &[6], one(6), "`warm_up`"),
            (
                &cuda,
                &variables[1..],
                Some(4),
                &[],
                one(4),
                "the thread's current CUDA context",
            ),
            (
                &cuda,
                &variables[1..],
                None,
                &[],
                Which::Rank(3),
                "LOCAL_RANK=3",
            ),
            (&python, &[], None, &[], one(0), "the default, one device"),
            (
                &Options::default(),
                &[(BACKEND, "Auto")],
                None,
                &[],
                one(0),
                "the default, one device",
            ),
        ];
        for (options, variables, current, warmed_up, which, by) in rows {
            let consent = decided(options, variables, current, warmed_up);
            assert_eq!(
                selected(&consent),
                Some((&which, by)),
                "{variables:?} {current:?}"
            );
        }
        let all = python.clone().with_all_devices();
        assert_eq!(
            selected(&decided(&all, &variables, None, &[])),
            Some((&Which::All, "zarr.config"))
        );
        let python = all.with_devices([1]);
        assert_eq!(
            selected(&decided(&python, &variables, None, &[])),
            Some((&one(1), "zarr.config"))
        );
    }

    #[test]
    fn the_options_come_before_the_environment() {
        let host = Options::default().with_backend(Backend::Host);
        let cuda = Options::default().with_backend(Backend::Cuda);
        let consent = decided(&host, &[(BACKEND, "cuda"), (DEVICES, "0")], None, &[]);
        assert_eq!(consent.backend, Backend::Host);
        assert!(consent.devices.is_err());
        let consent = decided(&cuda, &[(BACKEND, "host")], None, &[]);
        assert_eq!(consent.backend, Backend::Cuda);
        assert!(consent.devices.is_ok());
        // The environment asks for the host, whatever devices the options name.
        let named = Options::default().with_devices([0]);
        let consent = decided(&named, &[(BACKEND, "host")], None, &[]);
        let Err(refusal) = &consent.devices else {
            panic!("{consent:?}");
        };
        assert_eq!(refusal.text(), "ZARRS_CUDA_BACKEND asked for the host");
    }

    #[test]
    fn a_value_that_cannot_be_understood_is_named() {
        for (name, value, part) in [
            (BACKEND, "gpu", "auto, host or cuda"),
            (DEVICES, "first", "such as 0,1"),
            (DEVICES, "0,", "such as 0,1"),
            (DEVICES, "-1", "such as 0,1"),
            (DEVICES, "1,0,1", "different numbers"),
        ] {
            let consent = decided(&Options::default(), &[(name, value)], None, &[]);
            let wrong = consent.wrong().unwrap_or_default();
            for part in [name, value, part] {
                assert!(wrong.contains(part), "{wrong}");
            }
        }
        // A launcher's variable concerns only processes that have asked for a device.
        let rank = [(LOCAL_RANK, "first")];
        assert_eq!(decided(&Options::default(), &rank, None, &[]).wrong(), None);
        let cuda = Options::default().with_backend(Backend::Cuda);
        assert!(decided(&cuda, &rank, None, &[]).wrong().is_some());
        // Options that ask for the host need no other setting.
        let host = Options::default().with_backend(Backend::Host);
        assert_eq!(decided(&host, &[(BACKEND, "gpu")], None, &[]).wrong(), None);
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "a table")]
    fn the_verdict_tells_what_cannot_be_kept() {
        let default = Options::default();
        let cuda = default.clone().with_backend(Backend::Cuda);
        let named = default.clone().with_devices([1]);
        let none = Err("there is no driver");
        let host = [(BACKEND, "host")];
        type Row<'a> = (
            &'a Options,
            &'a [(&'a str, &'a str)],
            Result<&'a [usize], &'a str>,
            bool,
            &'a str,
        );
        let rows: [Row<'_>; 11] = [
            (
                &default,
                &[],
                Ok(&[0]),
                true,
                "arrays use no GPU: no GPU was asked for",
            ),
            (
                &named,
                &[],
                Ok(&[0, 1]),
                true,
                "arrays use the GPUs [1] where one is",
            ),
            (
                &named,
                &[],
                Ok(&[0]),
                false,
                "arrays use no GPU: the options name GPU 1, and the GPUs that can be used are [0]",
            ),
            (
                &named,
                &[],
                none,
                false,
                "arrays use no GPU: the options name GPU 1, and there is no driver",
            ),
            (
                &named,
                &host,
                Ok(&[0, 1]),
                true,
                "arrays use no GPU: ZARRS_CUDA_BACKEND asked for the host",
            ),
            (
                &cuda,
                &[],
                Ok(&[0]),
                true,
                "arrays use the GPUs [0] for all that a GPU does, or fail",
            ),
            (
                &cuda,
                &[],
                none,
                false,
                "the backend is `cuda`, so every read and every write of an array is refused: there is no driver",
            ),
            (
                &cuda,
                &[(DEVICES, "3")],
                Ok(&[0]),
                false,
                "the backend is `cuda`, so every read and every write of an array is refused: ZARRS_CUDA_DEVICES names GPU 3",
            ),
            (
                &cuda,
                &[(DEVICES, "all")],
                Ok(&[0, 2]),
                true,
                "arrays use the GPUs [0, 2]",
            ),
            (
                &default,
                &[(BACKEND, "auto")],
                none,
                true,
                "arrays use no GPU: there is no driver",
            ),
            (
                &default,
                &[(BACKEND, "gpu")],
                Ok(&[0]),
                false,
                "ZARRS_CUDA_BACKEND is \"gpu\"",
            ),
        ];
        for (options, variables, found, is_well, begin) in rows {
            let (well, text) = decided(options, variables, None, &[]).verdict(found);
            assert!(
                well == is_well && text.starts_with(begin),
                "{begin}: {text}"
            );
        }
    }

    #[test]
    fn the_verdict_on_cuda_and_a_rank_is_that_gpus_are_used_or_all_is_refused() {
        let cuda = Options::default().with_backend(Backend::Cuda);
        let ranked = decided(&cuda, &[(LOCAL_RANK, "0")], None, &[]);
        // The number of visible devices, which a rank needs, may be unknown on this machine.
        let (well, text) = ranked.verdict(Ok(&[0]));
        let begin = if well {
            "arrays use the GPUs"
        } else {
            "the backend is `cuda`, so"
        };
        assert!(text.starts_with(begin), "{text}");
    }
}

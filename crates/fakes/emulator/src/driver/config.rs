//! The settings of an emulated driver, and the faults that are injected there.

use super::codes::Code;
use crate::device::Schedule;

/// A device of the emulated driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The major and the minor version.
    pub compute_capability: (u32, u32),
    /// The number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// The most bytes from one row to the next in a copy of rows.
    pub largest_pitch: u32,
    /// The domain, the bus and the device on the PCI bus; if `None`, the driver does not say.
    pub pci: Option<[u32; 3]>,
    /// Bytes of device memory.
    pub memory: usize,
    /// Bytes of pinned memory.
    pub pinned: usize,
    /// When operations run.
    pub schedule: Schedule,
    /// Seed of the pattern in memory that was not written, and of the order of lanes.
    pub seed: u64,
    /// How many operations are enqueued before the device hangs: from the next one on nothing runs. `None` if
    /// it does not hang.
    pub hangs_after: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            compute_capability: (9, 0),
            multiprocessors: 4,
            largest_pitch: i32::MAX.cast_unsigned(),
            pci: None,
            memory: 1 << 30,
            pinned: 1 << 30,
            schedule: Schedule::Eager,
            seed: 0x5eed,
            hangs_after: None,
        }
    }
}

/// A call that fails, and does nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inject {
    /// The name of the function.
    pub function: String,
    /// The number of the call, among the calls of this function on the device, from 0.
    pub call: usize,
    /// The code that the call returns. After some codes the context does not work any more.
    pub code: Code,
}

/// The settings of the driver of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) devices: Vec<Config>,
    /// 1000 × major + 10 × minor.
    pub(super) version: i32,
    /// Calls that fail on every device, or that belong to none.
    pub(super) faults: Vec<Inject>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            version: 12_000,
            faults: Vec::new(),
        }
    }
}

impl Machine {
    /// Parses settings such as `devices=2 schedule=latest capability=8.6 hang=40 fault=cuInit:0:999`. Of
    /// several devices, each has the bus behind that of the device before.
    ///
    /// # Errors
    /// Names the setting that is not understood.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (mut machine, mut count, mut device) = (Self::default(), 1, Config::default());
        for setting in text.split_whitespace() {
            let wrong = || format!("the emulated driver does not understand `{setting}`");
            let (name, value) = setting.split_once('=').ok_or_else(wrong)?;
            let number = || value.parse::<usize>().map_err(|_| wrong());
            match name {
                "devices" => count = number()?,
                "memory" => device.memory = number()?,
                "pinned" => device.pinned = number()?,
                "pitch" => device.largest_pitch = number()? as u32,
                "multiprocessors" => device.multiprocessors = number()? as u32,
                "seed" => device.seed = number()? as u64,
                "hang" => device.hangs_after = Some(number()? as u64),
                "version" => machine.version = i32::try_from(number()?).map_err(|_| wrong())?,
                "capability" => {
                    let (major, minor) = value.split_once('.').ok_or_else(wrong)?;
                    let part = |text: &str| text.parse().map_err(|_| wrong());
                    device.compute_capability = (part(major)?, part(minor)?);
                }
                "pci" => {
                    let parts = value.split(':').map(|part| u32::from_str_radix(part, 16));
                    let parts = parts.collect::<Result<Vec<_>, _>>().map_err(|_| wrong())?;
                    device.pci = Some(parts.try_into().map_err(|_| wrong())?);
                }
                "schedule" => {
                    device.schedule = match value.split_once(':') {
                        None if value == "eager" => Schedule::Eager,
                        None if value == "latest" => Schedule::Latest,
                        Some(("priority", seed)) => {
                            Schedule::Priority(seed.parse().map_err(|_| wrong())?)
                        }
                        _ => return Err(wrong()),
                    };
                }
                "fault" => {
                    let parts: Vec<_> = value.split(':').collect();
                    let [function, call, code] = parts[..] else {
                        return Err(wrong());
                    };
                    machine.faults.push(Inject {
                        function: function.to_owned(),
                        call: call.parse().map_err(|_| wrong())?,
                        code: code.parse().map_err(|_| wrong())?,
                    });
                }
                _ => return Err(wrong()),
            }
        }
        for number in 0..count {
            let mut device = device.clone();
            if let Some([_, bus, _]) = &mut device.pci {
                *bus += number as u32;
            }
            machine.devices.push(device);
        }
        Ok(machine)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that panics has failed
mod tests {
    use super::*;

    #[test]
    fn settings_are_understood_or_named() {
        let machine =
            Machine::parse("devices=2 schedule=priority:7 capability=8.6 pitch=64 hang=9").unwrap();
        let device = Config {
            compute_capability: (8, 6),
            largest_pitch: 64,
            schedule: Schedule::Priority(7),
            hangs_after: Some(9),
            ..Config::default()
        };
        assert_eq!(machine.devices, [device.clone(), device]);
        let machine = Machine::parse("devices=0 version=11040 fault=cuInit:0:999").unwrap();
        assert_eq!((machine.devices.len(), machine.version), (0, 11_040));
        assert_eq!(machine.faults[0].code, 999);
        let machine = Machine::parse("devices=2 pci=10000:3b:1f").unwrap();
        let addresses = machine.devices.iter().map(|device| device.pci.unwrap());
        assert!(addresses.eq([[0x1_0000, 0x3b, 0x1f], [0x1_0000, 0x3c, 0x1f]]));
        for wrong in [
            "devices",
            "devices=two",
            "schedule=late",
            "fault=cuInit:0",
            "pci=0:3b",
            "pci=0:3b:00.0",
            "color=1",
        ] {
            let error = Machine::parse(wrong).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }
}

//! Mistakes in the calls of the driver: each is noticed, by the emulated driver or by wrong bytes.

use super::*;

/// Returns how a mistake was noticed, if it was.
fn noticed(outcome: &Outcome, device: usize) -> Option<String> {
    if let Some(violation) = driver::violations(device).first() {
        return Some(violation.clone());
    }
    match outcome {
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            return Some(text.unwrap_or_default());
        }
        Ok(Err(error)) => return Some(error.to_string()),
        Ok(Ok(())) => {}
    }
    let live = driver::live(device);
    if live != Live::default() {
        return Some(format!("left over: {live:?}"));
    }
    let launches = driver::calls(device)
        .into_iter()
        .find(|(name, _)| *name == "cuLaunchKernel");
    launches
        .is_none()
        .then(|| "nothing was launched on the device".to_owned())
}

#[test]
fn every_mistake_is_noticed() {
    let mistakes = emulated::mistakes();
    assert!(mistakes.len() >= 30);
    for mistake in mistakes {
        let how = SCHEDULES.into_iter().find_map(|schedule| {
            let driver = mistake.driver(config(schedule));
            let device = driver.device().ordinal;
            let outcome = run(driver);
            noticed(&outcome, device).map(|how| (schedule, how))
        });
        let (schedule, how) = how.unwrap_or_else(|| panic!("not noticed: {}", mistake.name));
        let line = how.lines().next().unwrap_or_default();
        println!("{} ({schedule:?}): {line}", mistake.name);
    }
}

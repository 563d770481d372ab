//! The protocol as a model: all interleavings of its steps, with processes that are killed and parts that are done
//! twice.
//!
//! A state has what is stored, and the step at which each process is. All states are visited that are reached from the
//! beginning. In each of them what readers see must be whole, and from each of them a repetition of all parts, one after
//! the other, must complete the run.

use std::collections::HashSet;

use super::Part;

/// The number of parts, each of which has one shard.
const PARTS: usize = 3;

/// The steps of a process. Each reads or writes one value, and is atomic in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    LookForDone,
    FindPlan,
    /// Checks that nothing is stored at the output.
    CheckFree,
    FindPlanAgain,
    LookForDoneAgain,
    MakePlan,
    LookAtPlan,
    StoreShard,
    /// Looks at the plan after the shard, which this process has created or found.
    LookAfter(bool),
    /// The plan is gone: looks whether the run is complete.
    LookBeforeTakingBack(bool),
    Mark,
    /// Looks at the mark of this part.
    LookAtMark(usize),
    /// Looks once more whether the run is complete, before it says that parts are missing.
    LookWhetherComplete,
    Show,
    StoreDone,
    DeletePlan,
    DeleteMark(usize),
    /// The process has ended, and said whether the output is complete.
    Ended(bool),
    /// The process has taken the output for that of somebody else.
    Refused,
}

/// A step that a wrong protocol leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeftOut {
    Nothing,
    LookForDone,
    CheckFree,
    LookForDoneAgain,
    LookWhetherComplete,
    LookAtPlan,
    StoreShard,
    LookAfter,
    LookAtMarks,
    LookBeforeTakingBack,
    StoreDone,
    DeletePlan,
    DeleteMarks,
    /// The mark is made before the shard.
    OrderOfMark,
    /// The record of the complete run is stored before the metadata.
    OrderOfDone,
    /// The plan is deleted before the record is stored.
    OrderOfPlan,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Stored {
    plan: bool,
    done: bool,
    marks: [bool; PARTS],
    shards: [bool; PARTS],
    /// The output that readers see.
    shown: Option<Shown>,
}

/// The maker of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shown {
    ByTheRun,
    /// The output was there before.
    BySomebodyElse,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    stored: Stored,
    /// The part and the step of each process, and whether it has found a part without a mark.
    processes: Vec<(usize, Step, bool)>,
}

/// Does one step of a process. Returns its next step.
#[allow(clippy::too_many_lines, reason = "an arm for each step")]
fn step(
    stored: &mut Stored,
    (part, step, misses): (usize, Step, bool),
    left_out: LeftOut,
) -> (Step, bool) {
    let left = |this: LeftOut| left_out == this;
    // Orders that are wrong exchange two steps.
    let next = match step {
        Step::LookForDone if stored.done && !left(LeftOut::LookForDone) => Step::DeletePlan,
        Step::LookForDone => Step::FindPlan,
        Step::FindPlan | Step::FindPlanAgain if stored.plan => Step::LookAtPlan,
        Step::FindPlan => Step::CheckFree,
        Step::CheckFree
            if (stored.shown.is_some() || stored.shards.contains(&true))
                && !left(LeftOut::CheckFree) =>
        {
            Step::FindPlanAgain
        }
        Step::CheckFree => Step::MakePlan,
        Step::FindPlanAgain => Step::LookForDoneAgain,
        Step::LookForDoneAgain if stored.done && !left(LeftOut::LookForDoneAgain) => {
            Step::DeletePlan
        }
        Step::LookForDoneAgain => Step::Refused,
        Step::MakePlan => {
            stored.plan = true;
            Step::LookAtPlan
        }
        Step::LookAtPlan if !stored.plan && !left(LeftOut::LookAtPlan) => Step::Ended(stored.done),
        Step::LookAtPlan if left(LeftOut::OrderOfMark) => Step::Mark,
        Step::LookAtPlan => Step::StoreShard,
        Step::StoreShard => {
            let is_new = !stored.shards[part];
            if !left(LeftOut::StoreShard) {
                stored.shards[part] = true;
            }
            Step::LookAfter(is_new)
        }
        Step::LookAfter(is_new) if !stored.plan && !left(LeftOut::LookAfter) => {
            Step::LookBeforeTakingBack(is_new)
        }
        Step::LookBeforeTakingBack(is_new)
            if !stored.done || left(LeftOut::LookBeforeTakingBack) =>
        {
            if is_new {
                stored.shards[part] = false;
            }
            Step::Ended(false)
        }
        Step::LookAfter(_) | Step::LookBeforeTakingBack(_) if left(LeftOut::OrderOfMark) => {
            Step::LookAtMark(0)
        }
        Step::LookAfter(_) | Step::LookBeforeTakingBack(_) => Step::Mark,
        Step::Mark => {
            stored.marks[part] = true;
            if left(LeftOut::OrderOfMark) {
                Step::StoreShard
            } else {
                Step::LookAtMark(0)
            }
        }
        Step::LookAtMark(_) if left(LeftOut::LookAtMarks) => Step::Show,
        Step::LookAtMark(number) => {
            let misses = misses || !stored.marks[number];
            let next = if number + 1 < PARTS {
                Step::LookAtMark(number + 1)
            } else {
                Step::LookWhetherComplete
            };
            return (next, misses);
        }
        Step::LookWhetherComplete if stored.done && !left(LeftOut::LookWhetherComplete) => {
            Step::DeletePlan
        }
        Step::LookWhetherComplete if misses => Step::Ended(false),
        Step::LookWhetherComplete if left(LeftOut::OrderOfDone) => Step::StoreDone,
        Step::LookWhetherComplete => Step::Show,
        Step::Show => {
            stored.shown = Some(Shown::ByTheRun);
            match left_out {
                LeftOut::OrderOfDone | LeftOut::OrderOfPlan => Step::DeletePlan,
                _ => Step::StoreDone,
            }
        }
        Step::StoreDone => {
            stored.done = !left(LeftOut::StoreDone);
            match left_out {
                LeftOut::OrderOfDone => Step::Show,
                LeftOut::OrderOfPlan => Step::DeleteMark(0),
                _ => Step::DeletePlan,
            }
        }
        Step::DeletePlan => {
            if !left(LeftOut::DeletePlan) {
                stored.plan = false;
            }
            if left(LeftOut::OrderOfPlan) && !stored.done {
                Step::StoreDone
            } else {
                Step::DeleteMark(0)
            }
        }
        Step::DeleteMark(number) => {
            if !left(LeftOut::DeleteMarks) {
                stored.marks[number] = false;
            }
            if number + 1 < PARTS {
                Step::DeleteMark(number + 1)
            } else {
                Step::Ended(true)
            }
        }
        Step::Ended(_) | Step::Refused => step,
    };
    (next, misses)
}

/// Returns a complete output of somebody else.
fn foreign() -> Stored {
    Stored {
        shown: Some(Shown::BySomebodyElse),
        shards: [true; PARTS],
        ..Stored::default()
    }
}

/// Checks what holds in each state. Returns the reason if it does not.
fn wrong(state: &State) -> Option<&'static str> {
    let Stored {
        done,
        shards,
        shown,
        ..
    } = &state.stored;
    if *shown == Some(Shown::BySomebodyElse) {
        let is_changed = state.stored != foreign();
        return is_changed.then_some("something is stored beside the output of somebody else");
    }
    let is_shown = shown.is_some();
    if is_shown && shards.contains(&false) {
        return Some("readers see an output without a shard");
    }
    if *done && !is_shown {
        return Some("the run is recorded as complete, and readers see nothing");
    }
    if state
        .processes
        .iter()
        .any(|process| process.1 == Step::Refused)
    {
        return Some("a process takes the output for that of somebody else");
    }
    let says_complete = |process: &(usize, Step, bool)| process.1 == Step::Ended(true);
    if state.processes.iter().any(says_complete) && !is_shown {
        return Some("a process says that the output is complete, and readers see nothing");
    }
    None
}

/// Does all parts again, one after the other, as a user does after kills. Returns the reason if that does not complete
/// the run and delete its traces.
fn again(stored: &Stored, left_out: LeftOut) -> Option<&'static str> {
    let mut stored = stored.clone();
    let mut said = false;
    for part in (0..PARTS).chain([0]) {
        let mut process = (part, Step::LookForDone, false);
        while !matches!(process.1, Step::Ended(_) | Step::Refused) {
            let (next, misses) = step(&mut stored, process, left_out);
            process = (part, next, misses);
        }
        said = process.1 == Step::Ended(true);
    }
    if !said || stored.shown.is_none() {
        return Some("all parts were done again, and the output is not complete");
    }
    if stored.plan || stored.marks.contains(&true) {
        return Some("all parts were done again, and the plan or a mark is left");
    }
    None
}

/// Visits all states of processes that do `parts`. Returns the first reason for which the protocol is wrong.
fn explore(parts: &[usize], left_out: LeftOut) -> Result<usize, &'static str> {
    explore_from(Stored::default(), parts, left_out)
}

/// Visits all states of processes that do `parts` and begin with `stored`.
fn explore_from(stored: Stored, parts: &[usize], left_out: LeftOut) -> Result<usize, &'static str> {
    let first = State {
        stored,
        processes: parts
            .iter()
            .map(|part| (*part, Step::LookForDone, false))
            .collect(),
    };
    let mut seen = HashSet::from([first.clone()]);
    let mut stored = HashSet::new();
    let mut next = vec![first];
    while let Some(state) = next.pop() {
        if let Some(reason) = wrong(&state) {
            return Err(reason);
        }
        // Each process may be killed here.
        if state.stored.shown != Some(Shown::BySomebodyElse)
            && stored.insert(state.stored.clone())
            && let Some(reason) = again(&state.stored, left_out)
        {
            return Err(reason);
        }
        for number in 0..state.processes.len() {
            let mut after = state.clone();
            let process = after.processes[number];
            let (step, misses) = step(&mut after.stored, process, left_out);
            after.processes[number] = (process.0, step, misses);
            if seen.insert(after.clone()) {
                next.push(after);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_interleaving_loses_a_part() {
    // All parts at once, and one of them twice.
    for parts in [&[0, 1, 2][..], &[0, 1, 2, 2], &[0, 0, 0]] {
        let states = explore(parts, LeftOut::Nothing).unwrap();
        assert!(states > 500, "{states}");
    }
}

#[test]
fn each_step_is_needed() {
    // The first look for the record of a complete run saves work: the others are enough. Without the one behind the
    // marks, a process may say that parts are missing of a run that was completed meanwhile; the next one says better.
    // The looks at the plan around a shard are for an output that is deleted during a run, which these processes do
    // not do; a process that is late ends by what it finds behind the marks.
    for needless in [
        LeftOut::LookForDone,
        LeftOut::LookWhetherComplete,
        LeftOut::LookAtPlan,
        LeftOut::LookAfter,
    ] {
        assert_eq!(explore(&[0, 1, 2, 2], needless).err(), None, "{needless:?}");
    }
    let wrong = [
        LeftOut::LookForDoneAgain,
        LeftOut::StoreShard,
        LeftOut::LookAtMarks,
        LeftOut::LookBeforeTakingBack,
        LeftOut::StoreDone,
        LeftOut::DeletePlan,
        LeftOut::DeleteMarks,
        LeftOut::OrderOfMark,
        LeftOut::OrderOfDone,
        LeftOut::OrderOfPlan,
    ];
    for left_out in wrong {
        let found = explore(&[0, 1, 2, 2], left_out);
        assert!(found.is_err(), "nothing is wrong without {left_out:?}");
    }
}

/// The output of somebody else, which has no plan and no record, is left as it is.
#[test]
fn the_output_of_somebody_else_stays() {
    explore_from(foreign(), &[0, 1, 2], LeftOut::Nothing).unwrap();
    let found = explore_from(foreign(), &[0, 1, 2], LeftOut::CheckFree);
    assert!(found.is_err(), "nothing is wrong without the check");
}

#[test]
fn parts_are_written_as_people_write_them() {
    let part: Part = "3/16".parse().unwrap();
    assert_eq!(
        (part.number(), part.of().get(), part.to_string()),
        (2, 16, "3/16".to_owned())
    );
    for wrong in ["0/3", "4/3", "1/0", "1", "a/b", "-1/3", "1/2/3", ""] {
        let error = wrong.parse::<Part>().unwrap_err();
        assert!(error.to_string().contains(" no part"), "{error}");
    }
}

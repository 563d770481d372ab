//! A block: which lanes run next, and who waits for whom.

use std::cell::RefCell;
use std::collections::HashMap;

use super::global::Global;
use super::sectors::Sectors;
use super::shared::Shared;
use super::taint::Taint;
use super::warp::{ALL, Warp, lanes, list};
use super::{Argument, Options, Order, Report, Wrong};
use crate::ptx::Kernel;
use crate::ptx::instruction::{Instruction, LANES, Op, Width};
use crate::random::Random;

/// Lanes of a warp that run together.
#[derive(Clone, Copy, Debug)]
struct Group {
    mask: u32,
    /// The instruction that comes next.
    next: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// At an instruction for which other lanes of the warp are missing.
    WaitsForWarp,
    /// At a barrier, with all lanes of the warp.
    WaitsForBlock,
}

/// A warp, and where its lanes are.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) warp: Warp,
    pub(super) taint: Option<Taint>,
    pub(super) number: usize,
    /// Barriers of the warp so far.
    pub(super) epoch: u32,
    groups: Vec<Group>,
    ended: u32,
}

/// The block that runs.
pub(super) struct Block<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) options: Options,
    grid: u32,
    pub(super) number: u32,
    pub(super) warps: Vec<Running>,
    /// Barriers of the block so far.
    pub(super) epoch: u32,
    pub(super) shared: Shared,
    pub(super) global: Global,
    pub(super) parameters: Vec<u8>,
    pub(super) sectors: Sectors,
    executed: Vec<u64>,
    left: u64,
    random: Option<Random>,
}

impl<'a> Block<'a> {
    pub(super) fn new(
        kernel: &'a Kernel,
        grid: u32,
        arguments: &[Argument<'_>],
        global: Global,
        options: Options,
    ) -> Self {
        let mut parameters = vec![0; Kernel::extent(&kernel.parameters)];
        for (parameter, argument) in kernel.parameters.iter().zip(arguments) {
            let range = parameter.offset..parameter.offset + parameter.len;
            parameters[range].copy_from_slice(argument.0);
        }
        let warps = take(kernel).unwrap_or_else(|| {
            let warps = (0..kernel.threads as usize / LANES).map(|number| Running {
                warp: Warp::new(kernel),
                taint: None,
                number,
                epoch: 0,
                groups: Vec::new(),
                ended: 0,
            });
            warps.collect()
        });
        Self {
            kernel,
            grid,
            number: 0,
            warps,
            epoch: 0,
            shared: Shared::new(kernel, options.checks),
            left: options.limit,
            random: match options.order {
                Order::Random(seed) => Some(Random::new(seed)),
                Order::Together | Order::Apart => None,
            },
            options,
            global,
            parameters,
            sectors: Sectors::default(),
            executed: vec![0; kernel.instructions.len()],
        }
    }

    pub(super) fn into_report(self) -> Report {
        keep(self.kernel, self.warps);
        Report {
            executed: self.executed,
            accesses: self.sectors.into_counts(),
        }
    }

    /// Run all blocks of the launch.
    pub(super) fn run_all(&mut self) -> Result<(), Wrong> {
        let blocks = self.options.blocks.clone().unwrap_or(0..self.grid);
        let mut order: Vec<u32> = Vec::new();
        if let Some(random) = &mut self.random {
            order = blocks.clone().collect();
            for last in (1..order.len()).rev() {
                order.swap(last, random.below(last + 1));
            }
        }
        for (turn, number) in blocks.enumerate() {
            self.number = order.get(turn).copied().unwrap_or(number);
            self.begin();
            self.run()?;
        }
        Ok(())
    }

    fn begin(&mut self) {
        let (kernel, block) = (self.kernel, self.number);
        self.shared.begin(block);
        self.epoch = 0;
        for running in &mut self.warps {
            running.warp.begin(kernel, running.number, block, self.grid);
            running.ended = 0;
            running.epoch = 0;
            running.groups.clear();
            running.taint = match running.taint.take() {
                _ if !self.options.checks => None,
                None => Some(Taint::new(kernel)),
                Some(mut taint) => {
                    taint.renew(kernel);
                    Some(taint)
                }
            };
            let all = Group {
                mask: ALL,
                next: 0,
                state: State::Ready,
            };
            running.groups.push(all);
            divide(running, 0, self.random.as_mut());
        }
    }

    fn run(&mut self) -> Result<(), Wrong> {
        loop {
            let ready = |running: &Running| running.groups.iter().any(|g| g.state == State::Ready);
            let warp = match &mut self.random {
                None => self.warps.iter().position(ready),
                Some(random) => {
                    let ready: Vec<usize> = (0..self.warps.len())
                        .filter(|number| ready(&self.warps[*number]))
                        .collect();
                    (!ready.is_empty()).then(|| ready[random.below(ready.len())])
                }
            };
            if let Some(warp) = warp {
                self.run_warp(warp)?;
                continue;
            }
            if self.warps.iter().all(|running| running.ended == ALL) {
                return Ok(());
            }
            self.release()?;
        }
    }

    /// No lane can run: all of them are at a barrier of the block, or something is wrong.
    fn release(&mut self) -> Result<(), Wrong> {
        let waits = |running: &Running| match running.groups[..] {
            [group] => group.state == State::WaitsForBlock && group.mask == ALL,
            _ => false,
        };
        let next = |running: &Running| running.groups.first().map(|group| group.next);
        let first = self.warps.first().and_then(next);
        if !self
            .warps
            .iter()
            .all(|warp| waits(warp) && next(warp) == first)
        {
            return Err(self.stuck());
        }
        self.epoch += 1;
        for running in &mut self.warps {
            running.epoch += 1;
            running.groups[0].next += 1;
            running.groups[0].state = State::Ready;
            divide(running, 0, self.random.as_mut());
        }
        Ok(())
    }

    /// Who waits for whom, for ever.
    fn stuck(&self) -> Wrong {
        let mut parts = Vec::new();
        let mut first = None;
        for running in &self.warps {
            for group in &running.groups {
                let instruction = &self.kernel.instructions[group.next as usize];
                let text = &self.kernel.lines[group.next as usize];
                first.get_or_insert(group.next);
                parts.push(format!(
                    "lanes {} of warp {} wait in line {} (`{text}`)",
                    list(group.mask),
                    running.number,
                    instruction.line
                ));
            }
            if running.ended != 0 {
                parts.push(format!(
                    "lanes {} of warp {} ended",
                    list(running.ended),
                    running.number
                ));
            }
        }
        Wrong {
            block: self.number,
            instruction: first,
            message: format!("lanes are missing: {}", parts.join("; ")),
        }
    }

    pub(super) fn wrong(&self, instruction: u32, message: String) -> Wrong {
        Wrong {
            block: self.number,
            instruction: Some(instruction),
            message,
        }
    }

    /// The group of the warp that runs next.
    fn choose(&mut self, warp: usize) -> usize {
        let groups = self.warps[warp].groups.iter().enumerate();
        let mut ready = groups.filter(|(_, group)| group.state == State::Ready);
        if let Some(random) = &mut self.random {
            let ready: Vec<usize> = ready.map(|(number, _)| number).collect();
            return ready[random.below(ready.len())];
        }
        // The one that is behind, so that it meets the others. Or any.
        let found = match self.options.order {
            Order::Together => ready.min_by_key(|(_, group)| group.next),
            Order::Apart | Order::Random(_) => ready.next(),
        };
        found.map_or(0, |(number, _)| number)
    }

    /// Run a group of the warp until it has to wait, or others should run.
    fn run_warp(&mut self, warp: usize) -> Result<(), Wrong> {
        let together = self.options.order == Order::Together;
        let group = self.choose(warp);
        let mut turn = match &mut self.random {
            Some(random) => 1 + random.below(64),
            None => usize::MAX,
        };
        let kernel = self.kernel;
        let Group { mask, mut next, .. } = self.warps[warp].groups[group];
        let is_alone = !together || self.warps[warp].groups.len() == 1;
        loop {
            let i = &kernel.instructions[next as usize];
            self.executed[next as usize] += 1;
            if self.left == 0 {
                let message = format!("it did not end in {} instructions", self.options.limit);
                return Err(self.wrong(next, message));
            }
            self.left -= 1;
            let active = match i.guard {
                None => mask,
                Some(guard) => self.active(warp, next, guard, mask)?,
            };
            match i.op {
                Op::Branch if active == mask => next = i.immediate.cast_unsigned() as u32,
                Op::Branch if active == 0 => next += 1,
                Op::Branch => {
                    let target = i.immediate.cast_unsigned() as u32;
                    self.part(warp, group, (mask & !active, next + 1), (active, target));
                    return Ok(());
                }
                Op::Return => {
                    let running = &mut self.warps[warp];
                    running.ended |= active;
                    let left = &mut running.groups[group];
                    left.mask &= !active;
                    left.next = next + 1;
                    if left.mask == 0 {
                        running.groups.remove(group);
                    }
                    return Ok(());
                }
                Op::Load { .. } | Op::Store { .. } | Op::Atomic(_) => {
                    self.access(warp, next, i, active)?;
                    next += 1;
                }
                _ if i.waits() && active == 0 => next += 1,
                _ if i.waits() && active != mask => {
                    self.part(warp, group, (mask & !active, next + 1), (active, next));
                    return Ok(());
                }
                _ if i.waits() => {
                    self.warps[warp].groups[group].next = next;
                    return self.arrive(warp, group, i);
                }
                _ => {
                    let running = &mut self.warps[warp];
                    if let Some(taint) = &mut running.taint {
                        taint.compute(&running.warp, i, active);
                    }
                    running.warp.compute(i, active);
                    next += 1;
                }
            }
            turn -= 1;
            if turn == 0 {
                self.warps[warp].groups[group].next = next;
                return Ok(());
            }
            if !is_alone {
                self.warps[warp].groups[group].next = next;
                if self.meet(warp, group) {
                    return Ok(());
                }
            }
        }
    }

    /// Lanes of a group go two ways: each a mask, and the instruction that comes next.
    fn part(&mut self, warp: usize, group: usize, stay: (u32, u32), leave: (u32, u32)) {
        let [stay, leave] = [stay, leave].map(|(mask, next)| Group {
            mask,
            next,
            state: State::Ready,
        });
        let groups = &mut self.warps[warp].groups;
        groups[group] = stay;
        groups.push(leave);
    }

    /// The lanes of `mask` that do an instruction with this guard.
    fn active(
        &self,
        warp: usize,
        next: u32,
        (predicate, negated): (u16, bool),
        mask: u32,
    ) -> Result<u32, Wrong> {
        let running = &self.warps[warp];
        if let Some(taint) = &running.taint
            && taint.has_predicate(predicate, mask)
        {
            return Err(self.wrong(next, "its predicate is undefined".to_string()));
        }
        let value = running.warp.predicates[usize::from(predicate)];
        Ok(mask & if negated { !value } else { value })
    }

    /// Lanes that are at the same instruction go on together. Returns whether others are behind.
    fn meet(&mut self, warp: usize, group: usize) -> bool {
        let groups = &mut self.warps[warp].groups;
        let next = groups[group].next;
        let same = |g: &Group| g.state == State::Ready && g.next == next;
        if groups.iter().filter(|g| same(g)).count() > 1 {
            let mask = groups.iter().filter(|g| same(g)).fold(0, |m, g| m | g.mask);
            groups.retain(|g| !same(g));
            groups.push(Group {
                mask,
                next,
                state: State::Ready,
            });
            return true;
        }
        groups
            .iter()
            .any(|g| g.state == State::Ready && g.next < next)
    }

    /// A group is at an instruction that waits for the lanes of a mask.
    fn arrive(&mut self, warp: usize, number: usize, i: &Instruction) -> Result<(), Wrong> {
        let running = &self.warps[warp];
        let Group { mask, next, .. } = running.groups[number];
        let members = match i.members() {
            None => [ALL; LANES],
            Some(register) => {
                if let Some(taint) = &running.taint
                    && taint.has(register, Width::W32, mask)
                {
                    return Err(
                        self.wrong(next, "the lanes it waits for are undefined".to_string())
                    );
                }
                running.warp.narrow[usize::from(register)]
            }
        };
        let needed = members[first(mask)];
        let alike = lanes(mask).filter(|lane| members[*lane] == needed);
        let alike = alike.fold(0, |all, lane| all | 1 << lane);
        if alike != mask {
            self.part(warp, number, (mask & !alike, next), (alike, next));
            return Ok(());
        }
        if i.op == Op::WarpBarrier && needed != ALL {
            // The emulator counts barriers for a whole warp, and not for each lane.
            let message = format!("a barrier of lanes {} alone is not emulated", list(needed));
            return Err(self.wrong(next, message));
        }
        let running = &mut self.warps[warp];
        if needed & mask != mask || needed & running.ended != 0 {
            let message = format!(
                "lanes {} are here, and wait for lanes {}; lanes {} ended",
                list(mask),
                list(needed),
                list(running.ended)
            );
            return Err(self.wrong(next, message));
        }
        running.groups[number].state = State::WaitsForWarp;
        let here = |g: &Group| {
            let waits = g.state == State::WaitsForWarp && g.next == next;
            waits && members[first(g.mask)] == needed
        };
        let arrived = running.groups.iter().filter(|g| here(g));
        let arrived = arrived.fold(0, |mask, group| mask | group.mask);
        if arrived != needed {
            return Ok(());
        }
        running.groups.retain(|g| !here(g));
        let group = running.groups.len();
        running.groups.push(Group {
            mask: arrived,
            next,
            state: State::WaitsForBlock,
        });
        if i.op == Op::BlockBarrier {
            return Ok(());
        }
        if let (Op::Shuffle(_), Some(taint)) = (i.op, &running.taint)
            && (taint.has(i.b, Width::W32, arrived) || taint.has(i.c, Width::W32, arrived))
        {
            return Err(self.wrong(next, "which lane it reads is undefined".to_string()));
        }
        if let Some(taint) = &mut running.taint {
            taint.compute(&running.warp, i, arrived);
        }
        running.warp.compute(i, arrived);
        if i.op == Op::WarpBarrier {
            running.epoch += 1;
        }
        running.groups[group].next += 1;
        running.groups[group].state = State::Ready;
        divide(running, group, self.random.as_mut());
        Ok(())
    }
}

thread_local! {
    /// The warps of launches that ended, by the kernel: making them takes longer than a short launch.
    static IDLE: RefCell<HashMap<u64, Vec<Running>>> = RefCell::default();
}

fn take(kernel: &Kernel) -> Option<Vec<Running>> {
    IDLE.with_borrow_mut(|idle| idle.remove(&kernel.id))
}

fn keep(kernel: &Kernel, warps: Vec<Running>) {
    IDLE.with_borrow_mut(|idle| {
        // More than the kernels of any module: tests parse modules of their own.
        if idle.len() == 64 {
            idle.clear();
        }
        drop(idle.insert(kernel.id, warps));
    });
}

/// The first lane of `mask`.
fn first(mask: u32) -> usize {
    mask.trailing_zeros() as usize % LANES
}

/// Lets the lanes of a group run apart, if chance wants it.
fn divide(running: &mut Running, group: usize, random: Option<&mut Random>) {
    let Some(random) = random else { return };
    // Half of the times they stay together.
    let chosen = match random.next() >> 62 {
        0 => random.next() as u32,
        1 => 1 << random.below(LANES),
        _ => return,
    };
    let mask = running.groups[group].mask;
    if chosen & mask == 0 || chosen & mask == mask {
        return;
    }
    let other = Group {
        mask: mask & !chosen,
        ..running.groups[group]
    };
    running.groups[group].mask = chosen & mask;
    running.groups.push(other);
}

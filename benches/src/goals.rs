//! Compares measurements with goals.

/// The goals that were checked.
#[derive(Default)]
pub struct Goals {
    missed: usize,
    lines: Vec<String>,
}

impl Goals {
    /// Checks that `measured` is `goal` or less.
    pub fn at_most(&mut self, what: &str, measured: f64, goal: f64) {
        self.add(what, measured, "at most", goal, measured <= goal);
    }

    /// Checks that `measured` is `goal` or more.
    pub fn at_least(&mut self, what: &str, measured: f64, goal: f64) {
        self.add(what, measured, "at least", goal, measured >= goal);
    }

    fn add(&mut self, what: &str, measured: f64, relation: &str, goal: f64, met: bool) {
        let verdict = if met { "met" } else { "MISSED" };
        self.missed += usize::from(!met);
        // Without trailing zeros.
        let goal = format!("{goal:.4}");
        let goal = goal.trim_end_matches('0').trim_end_matches('.');
        self.lines.push(format!(
            "{what}: {relation} {goal}: {measured:.4}, {verdict}"
        ));
    }

    /// Prints all goals, which are goals of `whom`.
    pub fn print(&self, whom: &str) {
        if self.lines.is_empty() {
            return;
        }
        println!(
            "\nGoals of {whom} ({} of {} missed)",
            self.missed,
            self.lines.len()
        );
        for line in &self.lines {
            println!("- {line}");
        }
    }
}

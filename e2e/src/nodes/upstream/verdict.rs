//! Whether a run is as it has to be.

use super::{PART, known, report::Told};
use std::fmt;

/// What counts of a run, or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    passed: usize,
    /// Specs that do not pass, and are known not to.
    known: Vec<String>,
    /// What must not be.
    wrong: Vec<String>,
}

impl Verdict {
    /// Judges a run. With `chosen`, the names of some specs have to begin with each of them, and all specs have to pass,
    /// known not to or not.
    pub(super) fn add(&mut self, proxy: &str, told: &Told, chosen: &[&str]) {
        for (name, outcome) in &told.results {
            if outcome.passed() {
                self.passed += 1;
                continue;
            }
            let word = outcome.word();
            if let Some(known) = known::of(name, proxy).filter(|_| chosen.is_empty()) {
                let line = format!("{proxy}: {name}: {word}, since {}", known.why);
                self.known.push(line);
            } else {
                let said = outcome.reason().unwrap_or_default();
                self.wrong.push(format!("{proxy}: {name}: {word}: {said}"));
            }
        }
        let ran = |wanted: &str| {
            let mut names = told
                .results
                .keys()
                .filter_map(|name| name.strip_prefix(PART));
            names.any(|name| name.starts_with(wanted))
        };
        for wanted in chosen.iter().filter(|wanted| !ran(wanted)) {
            self.wrong.push(format!(
                "{proxy}: no spec ran whose name begins with {wanted:?}"
            ));
        }
        if told.missing > 0 {
            self.wrong.push(format!(
                "{proxy}: {} chosen specs did not run",
                told.missing
            ));
        }
        if told.results.is_empty() {
            self.wrong
                .push(format!("{proxy}: no spec ran; the focus matches none"));
        }
        for complaint in &told.complaints {
            self.wrong.push(format!("{proxy}: {complaint}"));
        }
    }

    /// Whether nothing is wrong.
    pub(super) fn passes(&self) -> bool {
        self.wrong.is_empty()
    }
}

impl fmt::Display for Verdict {
    /// Ends as cargo's tests do, so that the launcher counts it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.known {
            writeln!(f, "known   {line}")?;
        }
        for line in &self.wrong {
            writeln!(f, "WRONG   {line}")?;
        }
        let word = if self.passes() { "ok" } else { "FAILED" };
        let (passed, wrong) = (self.passed, self.wrong.len());
        write!(f, "test result: {word}. {passed} passed; {wrong} failed;")
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{Outcome, tests::told};
    use super::*;
    use std::time::Duration;

    fn passed(name: &str) -> Told {
        let outcome = Outcome::Passed(Duration::ZERO);
        Told {
            results: [(name.to_owned(), outcome)].into(),
            ..Told::default()
        }
    }

    fn of(told: &Told, chosen: &[&str]) -> Verdict {
        let mut verdict = Verdict::default();
        verdict.add("onehop", told, chosen);
        verdict
    }

    #[test]
    fn what_failed_could_not_run_or_is_missing_is_wrong() {
        let verdict = of(&told(), &[]);
        // breaks, wants ssh, before all, and the one of which nothing is told
        assert_eq!((verdict.passed, verdict.wrong.len()), (1, 4), "{verdict}");
        assert!(
            verdict
                .to_string()
                .ends_with("test result: FAILED. 1 passed; 4 failed;")
        );
        assert!(!of(&Told::default(), &[]).passes());
        let broken = Told {
            complaints: vec!["Suite Timeout Elapsed".to_owned()],
            ..passed("a")
        };
        assert!(!of(&broken, &[]).passes());
    }

    #[test]
    fn a_chosen_name_for_which_no_spec_ran_is_wrong() {
        let told = passed("[sig-network] Services should serve");
        assert!(of(&told, &["Services should serve"]).passes());
        assert!(!of(&told, &["Services should serve", "Conntrack"]).passes());
    }

    #[test]
    fn what_is_known_not_to_pass_is_no_failure_but_where_all_have_to_pass() {
        let known = &known::KNOWN[0];
        let mut told = passed("[sig-network] Services should serve");
        let name = format!("[sig-network] {}", known.spec);
        told.results
            .insert(name, Outcome::Failed("failed: no".to_owned()));
        let verdict = of(&told, &[]);
        assert!(verdict.passes() && verdict.known.len() == 1, "{verdict}");
        assert!(!of(&told, &["Services should serve"]).passes());
    }
}

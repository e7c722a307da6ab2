//! One copy of each name that comes again and again: the nodes, zones and port names of a cluster's endpoints. Each thread
//! has copies of its own, so that nobody waits for anybody.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

/// From so many names on, those that nobody has any more are looked for.
const MANY: usize = 1024;

#[derive(Default)]
struct Names {
    all: HashSet<Arc<str>>,
    /// How many there may be before the next look.
    limit: usize,
}

thread_local! {
    static NAMES: RefCell<Names> = RefCell::default();
}

/// The copy of this text.
pub(super) fn copy_of(text: &str) -> Arc<str> {
    NAMES.with_borrow_mut(|names| names.copy_of(text))
}

impl Names {
    fn copy_of(&mut self, text: &str) -> Arc<str> {
        if let Some(copy) = self.all.get(text) {
            return Arc::clone(copy);
        }
        if self.all.len() >= self.limit.max(MANY) {
            self.all.retain(|copy| Arc::strong_count(copy) > 1);
            self.limit = 2 * self.all.len();
        }
        let copy: Arc<str> = Arc::from(text);
        self.all.insert(Arc::clone(&copy));
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s285_names_that_are_alike_are_one_and_those_out_of_use_go() {
        let mut names = Names::default();
        let kept: Vec<_> = (0..MANY).map(|n| names.copy_of(&n.to_string())).collect();
        assert!(Arc::ptr_eq(&kept[7], &names.copy_of("7")), "S-285");
        for n in MANY..10 * MANY {
            names.copy_of(&n.to_string());
        }
        assert!(names.all.len() <= 2 * MANY, "{}", names.all.len());
        assert!(Arc::ptr_eq(&kept[7], &names.copy_of("7")));
    }
}

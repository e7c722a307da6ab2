//! Which endpoint of a list lies in which slot. Called by compile for every list of every frontend.
//!
//! A packet that is under way has already drawn its slot, and every moved slot is a write, so slots
//! move as little as possible (S-244): what stays keeps its place, what is new takes the place of
//! what left, and only a hole that nothing new fills is closed by the last slot.

use std::collections::BTreeSet;

/// Lays `wanted` (each value once) into slots, given the list that the kernel holds.
pub fn assign<T: Copy + Ord>(held: &[T], wanted: &[T]) -> Vec<T> {
    let mut fresh: BTreeSet<T> = wanted.iter().copied().collect();
    // A target that is held twice (a foreign hand, or two lists that became one) keeps one place.
    let mut slots: Vec<Option<T>> = held.iter().map(|target| fresh.take(target)).collect();
    let mut fresh = wanted
        .iter()
        .copied()
        .filter(|target| fresh.contains(target));
    for hole in slots.iter_mut().filter(|slot| slot.is_none()) {
        *hole = fresh.next();
    }
    slots.extend(fresh.map(Some));
    close_holes(slots)
}

fn close_holes<T: Copy>(mut slots: Vec<Option<T>>) -> Vec<T> {
    let mut closed = Vec::with_capacity(slots.len());
    let mut next = 0;
    while next < slots.len() {
        match slots[next] {
            Some(target) => {
                closed.push(target);
                next += 1;
            }
            // The last slot moves in; if it is a hole itself, it just goes.
            None => {
                slots.swap_remove(next);
            }
        }
    }
    closed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn s244_replacing_one_endpoint_touches_one_slot() {
        assert_eq!(assign(&[1, 2, 3, 4], &[1, 9, 3, 4]), [1, 9, 3, 4]);
        assert_eq!(assign(&[4, 2, 3, 1], &[1, 2, 3, 0]), [0, 2, 3, 1]);
    }

    #[test]
    fn s244_removal_fills_the_hole_with_the_last_slot() {
        assert_eq!(assign(&[1, 2, 3, 4], &[1, 3, 4]), [1, 4, 3]);
        assert_eq!(assign(&[1, 2, 3, 4], &[1, 2, 3]), [1, 2, 3]);
        assert_eq!(assign(&[1, 2], &[]), [0_u8; 0]);
    }

    #[test]
    fn growth_appends() {
        assert_eq!(assign(&[], &[3, 1]), [3, 1]);
        assert_eq!(assign(&[2], &[1, 2, 3]), [2, 1, 3]);
    }

    proptest! {
        #[test]
        fn s244_list_is_the_wanted_one_with_the_fewest_writes(
            held in proptest::collection::vec(0_u8..12, 0..10),
            wanted in proptest::collection::btree_set(0_u8..12, 0..10),
        ) {
            let wanted: Vec<u8> = wanted.into_iter().collect();
            let mut slots = assign(&held, &wanted);
            let held_once: BTreeSet<u8> = held.iter().copied().collect();
            if held_once.len() == held.len() {
                // Nothing that stays moves unless the list became too short for its place.
                let moved = slots.iter().enumerate().filter(|(at, target)| {
                    held.iter().position(|old| old == *target).is_some_and(|old| old != *at)
                }).count();
                let out_of_range = held.iter().skip(slots.len()).filter(|t| wanted.contains(t)).count();
                prop_assert_eq!(moved, out_of_range);
            }
            slots.sort_unstable();
            prop_assert_eq!(slots, wanted);
        }
    }
}

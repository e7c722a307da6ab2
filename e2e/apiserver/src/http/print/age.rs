//! Times as people read them: `HumanDuration`.

use std::time::Duration;

use onehop_core::time::Time;

use super::Row;
use crate::object::str_at;

/// Age of a time in an object; `<unknown>` if there is none.
pub(crate) fn of(row: Row, path: &[&str]) -> String {
    match str_at(row.object, path) {
        "" => "<unknown>".to_owned(),
        time => since(time, row.now),
    }
}

/// Time since an RFC 3339 time.
pub(crate) fn since(time: &str, now: Time) -> String {
    time.parse::<Time>()
        .map_or_else(|_| "<unknown>".to_owned(), |time| human(now.since(time)))
}

fn human(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    let two = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () if days < 730 => format!("{days}d"),
        () if days < 2920 => two(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_written_as_kubectl_users_know_them() {
        let shown = |seconds| human(Duration::from_secs(seconds));
        let expected = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_800, "3h"),
            (12_000, "3h20m"),
        ];
        for (seconds, text) in expected {
            assert_eq!(shown(seconds), text);
        }
        assert_eq!(shown(30 * 3600), "30h");
        assert_eq!(shown(3 * 86_400 + 3600), "3d1h");
        assert_eq!(shown(800 * 86_400), "2y70d");
    }
}

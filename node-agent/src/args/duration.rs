//! Durations as Go writes them, such as `24h` or `1h0m0s`: flags and files of kube-proxy have them.

use std::time::Duration;

/// Reads one; the error says what is wanted.
pub fn parse(text: &str) -> Result<Duration, String> {
    read(text.trim()).ok_or_else(|| format!("{text:?} is no duration such as 24h, 1h30m or 0s"))
}

fn read(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut sum) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c != '.' && !c.is_ascii_digit())?;
        let (number, after) = rest.split_at(digits);
        let unit = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(unit);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return None,
        };
        let value: f64 = number.parse().ok()?;
        sum = sum.checked_add(Duration::try_from_secs_f64(value * seconds).ok()?)?;
        rest = next;
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s303_durations_are_written_as_in_go() {
        let seconds = |text| parse(text).map(|time| time.as_secs());
        assert_eq!(seconds("24h"), Ok(86_400));
        assert_eq!(seconds("24h0m0s"), Ok(86_400));
        assert_eq!(seconds("1h30m"), Ok(5_400));
        assert_eq!(seconds("1.5h"), Ok(5_400));
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("0"), Ok(0));
        for wrong in ["", "24", "h", "1d", "-5s"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

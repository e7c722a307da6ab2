//! Histograms as proxies' metrics tell them.

use std::collections::BTreeMap;

/// Counts by the upper end of their bucket in microseconds (as bits: positive numbers keep their order), of all families.
pub(super) type Buckets = BTreeMap<u64, f64>;

/// Counts of a histogram's buckets in the text of metrics.
pub(super) fn buckets(text: &str, name: &str) -> Buckets {
    let start = format!("{name}_bucket{{");
    let mut all = Buckets::new();
    for line in text.lines().filter(|line| line.starts_with(&start)) {
        let end = line
            .split_once("le=\"")
            .and_then(|(_, rest)| rest.split_once('"'));
        let count = line
            .rsplit_once(' ')
            .and_then(|(_, count)| count.parse::<f64>().ok());
        if let (Some((end, _)), Some(count)) = (end, count) {
            // In microseconds, so that it orders; what is beyond all buckets comes last.
            let end = end.parse::<f64>().map_or(f64::INFINITY, |end| end * 1e6);
            *all.entry(end.to_bits()).or_default() += count;
        }
    }
    all
}

/// The upper end (in ms) of the bucket in which this share of what was counted between two looks lies.
pub(super) fn quantile_of(before: &Buckets, after: &Buckets, share: f64) -> f64 {
    let counted = |end: &u64, count: &f64| count - before.get(end).copied().unwrap_or(0.0);
    // Buckets hold all that lie below them, too.
    let all = after
        .iter()
        .next_back()
        .map_or(0.0, |(end, count)| counted(end, count));
    let reached = after
        .iter()
        .find(|(end, count)| counted(end, count) >= share * all);
    reached.map_or(f64::INFINITY, |(end, _)| f64::from_bits(*end) / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_a_histogram_lies_in_a_bucket() {
        let text = |low, high| {
            format!(
                "h_sum 1\nh_bucket{{le=\"0.001\",f=\"4\"}} {low}\nh_bucket{{le=\"0.002\",f=\"4\"}} {high}\n\
                 h_bucket{{le=\"+Inf\",f=\"4\"}} {high}\nh_bucket{{le=\"0.001\",f=\"6\"}} 0\n"
            )
        };
        let (before, after) = (buckets(&text(5, 5), "h"), buckets(&text(104, 105), "h"));
        let within = |share| quantile_of(&before, &after, share).round();
        assert!(within(0.99) < 1.5, "{before:?} {after:?}");
        assert!(within(0.995) > 1.5);
    }
}

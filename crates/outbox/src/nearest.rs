//! Which known name somebody may have meant.

/// Returns the candidate nearest to `name`, if any is near at all. Case and underscores don't count, so that
/// `aggregateType` finds `aggregate_type` and `aggregatetype`.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = folded(name);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&wanted, &folded(candidate)), candidate))
        .filter(|(distance, _)| *distance <= wanted.len().div_ceil(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn folded(name: &str) -> String {
    name.chars()
        .filter(|character| *character != '_')
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_nonsense_finds_none() {
        let names = ["event_id", "aggregate_type", "aggregate_id"];
        assert_eq!(nearest("aggregateType", names), Some("aggregate_type"));
        assert_eq!(nearest("agregate_typ", names), Some("aggregate_type"));
        assert_eq!(nearest("EVENT-ID", names), Some("event_id"));
        assert_eq!(nearest("price", names), None);
        assert_eq!(nearest("", names), None);
    }
}

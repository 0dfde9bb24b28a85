//! Words for people.

/// A number with its noun: `1 rank`, `2 ranks`, `0 copies`.
pub fn count(number: impl Into<u64>, noun: &str) -> String {
    let number = number.into();
    match (number, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) if noun.ends_with('s') => format!("{number} {noun}es"),
        (_, None) => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn one_is_not_many() {
        assert_eq!(count(1u32, "rank"), "1 rank");
        assert_eq!(count(0u32, "copy"), "0 copies");
        assert_eq!(count(2u64, "restart"), "2 restarts");
        assert_eq!(count(2u64, "process"), "2 processes");
    }
}

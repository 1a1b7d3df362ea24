//! The kernel's CPU list format: `0-3,8,10-11`.

/// Largest CPU number that is believed; larger ones mean that the text is not a CPU list.
const MAX_CPU: usize = 1 << 16;

/// Parses a CPU list into ascending, distinct CPU numbers; `None` if it is malformed.
pub(super) fn parse(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for item in text.trim().split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (first, last) = match item.split_once('-') {
            Some((first, last)) => (first.trim().parse().ok()?, last.trim().parse().ok()?),
            None => {
                let cpu: usize = item.parse().ok()?;
                (cpu, cpu)
            }
        };
        if first > last || last > MAX_CPU {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn ranges_and_single_cpus() {
        assert_eq!(parse("0-3\n"), Some(vec![0, 1, 2, 3]));
        assert_eq!(parse("0,2-3,7"), Some(vec![0, 2, 3, 7]));
        assert_eq!(parse("5,1-2,2"), Some(vec![1, 2, 5]));
        assert_eq!(parse("\n"), Some(vec![]));
    }

    #[test]
    fn malformed_lists_are_refused() {
        for text in ["x", "3-1", "1-", "-1", "1-2-3", "0-99999999999", "0-4000000000"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

//! Names with `*` and `?`, which stand for any characters and for one.

use std::convert::Infallible;
use std::str::FromStr;

/// A pattern of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern(String);

impl FromStr for Pattern {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl Pattern {
    /// Returns the pattern as it was written.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Reports whether only one name can match.
    pub(super) fn is_name(&self) -> bool {
        !self.0.contains(['*', '?'])
    }

    /// Reports whether the whole name matches.
    pub(super) fn matches(&self, name: &str) -> bool {
        let (pattern, name): (Vec<char>, Vec<char>) =
            (self.0.chars().collect(), name.chars().collect());
        let (mut p, mut n) = (0, 0);
        // Where to go on if what follows a `*` doesn't match: it takes one character more.
        let mut retry = None;
        loop {
            match pattern.get(p) {
                Some('*') => {
                    retry = Some((p + 1, n));
                    p += 1;
                    continue;
                }
                Some(c) if name.get(n).is_some_and(|d| *c == '?' || c == d) => {
                    (p, n) = (p + 1, n + 1);
                    continue;
                }
                None if n == name.len() => return true,
                _ => {}
            }
            match retry {
                Some((after, taken)) if taken < name.len() => {
                    retry = Some((after, taken + 1));
                    (p, n) = (after, taken + 1);
                }
                _ => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn whole_names_match() {
        for (pattern, name, matches) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "anything", true),
            ("blk.*.ffn_down.weight", "blk.12.ffn_down.weight", true),
            ("blk.?.ffn_down.weight", "blk.12.ffn_down.weight", false),
            ("blk.??.*", "blk.12.ffn_down.weight", true),
            ("*.weight", "blk.0.weight.weight", true),
            ("*.weight", "blk.0.bias", false),
            ("*a*b", "xaxaxb", true),
            ("*a*b", "xaxaxbx", false),
            ("?", "é", true),
            ("a**", "a", true),
        ] {
            let pattern: Pattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(name), matches, "{pattern:?} {name}");
        }
    }
}

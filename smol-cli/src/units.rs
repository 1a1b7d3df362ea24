//! Sizes for people.

/// Formats a number of bytes with a decimal unit and about three digits: `98.4 MB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1e3;
    let mut unit = 0;
    // 999.95 would be printed as 1000.0.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Returns the number with commas between groups of three digits: `98,362,432`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1000), "1.00 kB");
        assert_eq!(bytes(98_362_432), "98.4 MB");
        assert_eq!(bytes(999_960_000), "1.00 GB");
        assert_eq!(bytes(u64::MAX), "18.4 EB");
    }

    #[test]
    fn groups_of_three() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(grouped(98_362_432), "98,362,432");
    }
}

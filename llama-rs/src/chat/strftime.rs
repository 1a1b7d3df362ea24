//! The part of `strftime` that chat templates use, in UTC and with English names.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment split into calendar fields.
struct Civil {
    year: i64,
    /// 0..12
    month: usize,
    /// 1..=31
    day: i64,
    /// 1..=366
    day_of_year: i64,
    /// 0 is Sunday
    weekday: usize,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Civil {
    fn new(time: SystemTime) -> Self {
        let seconds = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_secs() as i64,
            Err(before) => -(before.duration().as_secs() as i64),
        };
        let days = seconds.div_euclid(86_400);
        let of_day = seconds.rem_euclid(86_400);
        // Hinnant's algorithm: years start in March, so that the leap day comes last.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_from_march + 2) / 153;
        let day = day_from_march - (153 * month_from_march + 2) / 5 + 1;
        let month = (month_from_march + 2) % 12;
        let year = year_of_era + era * 400 + i64::from(month < 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let day_of_year =
            if month < 2 { day_from_march - 305 } else { day_from_march + 60 + i64::from(leap) };
        Self {
            year,
            month: month as usize,
            day,
            day_of_year,
            weekday: (days + 4).rem_euclid(7) as usize,
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }

    fn hour12(&self) -> i64 {
        (self.hour + 11) % 12 + 1
    }
}

/// Formats a time; directives that are not known stay as they are.
pub(super) fn format(time: SystemTime, format: &str) -> String {
    let t = Civil::new(time);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next();
        // GNU's way to leave out the padding
        let (unpadded, directive) = match directive {
            Some('-') => (true, chars.next()),
            other => (false, other),
        };
        let number = |value: i64, width: usize| {
            if unpadded { value.to_string() } else { format!("{value:0width$}") }
        };
        out.push_str(&match directive {
            Some('Y') => number(t.year, 4),
            Some('y') => number(t.year.rem_euclid(100), 2),
            Some('m') => number(t.month as i64 + 1, 2),
            Some('d') => number(t.day, 2),
            Some('e') => format!("{:2}", t.day),
            Some('j') => number(t.day_of_year, 3),
            Some('H') => number(t.hour, 2),
            Some('I') => number(t.hour12(), 2),
            Some('M') => number(t.minute, 2),
            Some('S') => number(t.second, 2),
            Some('p') => (if t.hour < 12 { "AM" } else { "PM" }).to_owned(),
            Some('B') => MONTHS[t.month].to_owned(),
            Some('b' | 'h') => MONTHS[t.month][..3].to_owned(),
            Some('A') => DAYS[t.weekday].to_owned(),
            Some('a') => DAYS[t.weekday][..3].to_owned(),
            Some('w') => t.weekday.to_string(),
            Some('F') => format!("{:04}-{:02}-{:02}", t.year, t.month + 1, t.day),
            Some('T') => format!("{:02}:{:02}:{:02}", t.hour, t.minute, t.second),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{}{other}", if unpadded { "-" } else { "" }),
            None => "%".to_owned(),
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn known_moments() {
        // checked with `date -u -d @N`
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 Thu 001"),
            (951_782_400, "2000-02-29 00:00:00 Tue 060"),
            (951_868_800, "2000-03-01 00:00:00 Wed 061"),
            (1_709_251_199, "2024-02-29 23:59:59 Thu 060"),
            (1_735_689_599, "2024-12-31 23:59:59 Tue 366"),
            (1_767_225_600, "2026-01-01 00:00:00 Thu 001"),
            (4_102_444_800, "2100-01-01 00:00:00 Fri 001"),
            (4_107_542_400, "2100-03-01 00:00:00 Mon 060"),
        ] {
            assert_eq!(format(at(seconds), "%F %T %a %j"), expected);
        }
    }

    #[test]
    fn directives() {
        let time = at(1_720_188_307); // 2024-07-05 14:05:07
        assert_eq!(format(time, "%d %b %Y"), "05 Jul 2024");
        assert_eq!(format(time, "%A, %B %-d, %y"), "Friday, July 5, 24");
        assert_eq!(format(time, "%I:%M %p %-I %e|%w%%"), "02:05 PM 2  5|5%");
        assert_eq!(format(time, "%Q %-Q %"), "%Q %-Q %");
    }

    #[test]
    fn times_before_1970_work() {
        assert_eq!(format(UNIX_EPOCH - Duration::from_secs(1), "%F %T"), "1969-12-31 23:59:59");
    }
}

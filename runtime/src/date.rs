//! Dates of the Gregorian calendar, in UTC.

use std::fmt::Write;
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
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The time now, in UTC, as `strftime` would format it.
pub(crate) fn now(format: &str) -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    utc(seconds, format)
}

/// So many seconds after the beginning of 1970, as `strftime` would format it in the C locale. A directive that is not known
/// stays as it is.
#[must_use]
pub fn utc(seconds: u64, format: &str) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let (year, month, day, of_year) = civil(days);
    let week_day = DAYS[((days + 4) % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let hour_12 = (hour + 11) % 12 + 1;
    let half = if hour < 12 { "AM" } else { "PM" };
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = rest.next();
        let bare = directive == Some('-');
        if bare {
            directive = rest.next();
        }
        let mut padded = |value: u64, width: usize| {
            let _ = if bare { write!(out, "{value}") } else { write!(out, "{value:0width$}") };
        };
        match directive {
            Some('Y') => padded(year, 4),
            Some('y') => padded(year % 100, 2),
            Some('m') => padded(month, 2),
            Some('d') => padded(day, 2),
            Some('j') => padded(of_year, 3),
            Some('H') => padded(hour, 2),
            Some('I') => padded(hour_12, 2),
            Some('M') => padded(minute, 2),
            Some('S') => padded(second % 60, 2),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(week_day),
            Some('a') => out.push_str(&week_day[..3]),
            Some('p') => out.push_str(half),
            Some('F') => {
                let _ = write!(out, "{year:04}-{month:02}-{day:02}");
            }
            Some('T') => {
                let _ = write!(out, "{hour:02}:{minute:02}:{:02}", second % 60);
            }
            Some('Z') => out.push_str("UTC"),
            Some('%') => out.push('%'),
            other => {
                out.push('%');
                out.extend(bare.then_some('-'));
                out.extend(other);
            }
        }
    }
    out
}

/// Year, month, day of the month and of the year of a day since 1970, in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let (of_year, mut month) = (left + 1, 1);
    for length in [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1, of_year)
}

#[cfg(test)]
mod tests {
    use super::utc;

    /// What `date -u -d @N` and Python's `strftime` say.
    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, format, wanted) in [
            (0, "%A %d %B %Y %H:%M:%S", "Thursday 01 January 1970 00:00:00"),
            (951_782_400, "%F %j %a", "2000-02-29 060 Tue"),
            (1_735_689_599, "%d %b %Y %I:%M %p %y", "31 Dec 2024 11:59 PM 24"),
            (4_107_542_400, "%F", "2100-03-01"),
            (1_767_225_600, "%-d/%-m %T %% %Q %Z", "1/1 00:00:00 % %Q UTC"),
        ] {
            assert_eq!(utc(seconds, format), wanted);
        }
    }
}

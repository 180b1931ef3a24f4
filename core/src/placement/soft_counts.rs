//! Acceptable numbers of processes of a spawned application (info key `soft`).
//!
//! Rule: a list of numbers and triplets `FIRST:LAST[:STRIDE]`, both ends included; of the numbers in
//! it that can be started the largest is. Source: MPI 4.0, section 11.8.4 (info key `soft`).

/// A list of acceptable numbers of processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SoftCounts(Vec<Triplet>);

/// Ascending numbers from `first` to at most `limit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Triplet {
    first: i64,
    limit: i64,
    /// Step between two numbers; at least 1.
    stride: i64,
}

impl SoftCounts {
    /// Reads a list; nothing if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        text.split(',')
            .map(Triplet::parse)
            .collect::<Option<_>>()
            .map(Self)
    }

    /// Returns the largest number that is not more than `most`; `None` for 0.
    pub fn largest(&self, most: u32) -> Option<u32> {
        let best = self
            .0
            .iter()
            .filter_map(|triplet| triplet.largest(most.into()))
            .max()?;
        u32::try_from(best).ok().filter(|best| *best > 0)
    }
}

impl Triplet {
    fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| text.trim().parse::<i32>().ok().map(i64::from);
        let mut parts = text.split(':');
        let first = number(parts.next()?)?;
        let last = parts.next().map_or(Some(first), number)?;
        let stride = parts.next().map_or(Some(1), number)?;
        if parts.next().is_some() || stride == 0 {
            return None;
        }
        let steps = (last - first) / stride;
        Some(match stride > 0 {
            true => Self {
                first,
                limit: last,
                stride,
            },
            // A list that falls has the same numbers as one that rises from its end.
            false => Self {
                first: first + steps * stride,
                limit: if steps < 0 {
                    first + steps * stride - 1
                } else {
                    first
                },
                stride: -stride,
            },
        })
    }

    fn largest(&self, most: i64) -> Option<i64> {
        let last = self.limit.min(most);
        (last >= self.first).then(|| self.first + (last - self.first) / self.stride * self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_count_is_largest_fitting_number() {
        let largest = |text: &str, most| SoftCounts::parse(text).unwrap().largest(most);
        assert_eq!(largest("0:8", 6), Some(6));
        assert_eq!(largest("2:10:4", 9), Some(6));
        assert_eq!(largest("10:1:-3", 9), Some(7));
        assert_eq!(largest("1:4:-1", 9), None);
        assert_eq!(largest("1, 3, 16:32", 15), Some(3));
        assert_eq!(largest("4", 3), None);
        assert_eq!(largest("0", 3), None, "no process at all is no job");
        assert_eq!(largest("-5:2", 9), Some(2));
    }

    #[test]
    fn malformed_soft_counts_are_refused() {
        for text in ["", "a", "1:", "1:2:0", "1:2:3:4", "1,,2", "99999999999"] {
            assert_eq!(SoftCounts::parse(text), None, "{text:?}");
        }
    }
}

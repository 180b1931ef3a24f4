//! Measurements of two ranks between two hosts (`wireup doctor --run`).

use serde::{Deserialize, Serialize};

/// The result of a pair, at the first of its hosts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pair {
    /// The number of the other host; the same on one machine.
    pub host: usize,
    /// Measurement, or the error of the launch.
    pub result: Result<PingPong, String>,
}

/// Measured values, as far as the program prints them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PingPong {
    /// Microseconds that a small message takes one way.
    pub latency_us: Option<f64>,
    /// Megabytes in a second, of large messages one way.
    pub bandwidth_mb_s: Option<f64>,
    /// Name of the MPI, as it prints it.
    pub mpi: Option<String>,
}

impl PingPong {
    /// Finds the figures in the output of a program: `latency_us=NUMBER`, `bandwidth_mb_s=NUMBER`, and to the end of
    /// the line `mpi=TEXT`.
    pub fn find(printed: &str) -> Self {
        let after = |name: &str| {
            let (_, rest) = printed.split_once(name)?;
            rest.lines().next()
        };
        let number = |name: &str| {
            let word = after(name)?.split_whitespace().next()?;
            word.parse().ok().filter(|number: &f64| number.is_finite())
        };
        Self {
            latency_us: number("latency_us="),
            bandwidth_mb_s: number("bandwidth_mb_s="),
            mpi: after("mpi=").map(|text| text.trim().to_owned()),
        }
    }

    /// Formats the result for the user.
    pub fn text(&self) -> String {
        let latency = self.latency_us.map(|us| format!("{us:.1} us"));
        let bandwidth = self.bandwidth_mb_s.map(|rate| format!("{rate:.0} MB/s"));
        let parts = [latency, bandwidth, self.mpi.clone()];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => "the program succeeded".to_owned(),
            false => parts.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_anywhere_in_program_output() {
        let printed =
            "hello\npingpong latency_us=12.50 bandwidth_mb_s=980 mpi=Open MPI v5.0.8, x\nbye\n";
        let found = PingPong::find(printed);
        assert_eq!(found.text(), "12.5 us, 980 MB/s, Open MPI v5.0.8, x");
        let none = PingPong::find("latency_us=fast bandwidth_mb_s=inf");
        assert_eq!(none, PingPong::default());
        assert_eq!(none.text(), "the program succeeded");
    }
}

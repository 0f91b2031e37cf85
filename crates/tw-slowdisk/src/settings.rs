//! Settings of a slow disk: what happens to operations by chance.

use std::fmt;
use std::time::Duration;

use rustix::io::Errno;
use tw_base::Rng;
use tw_base::fault::{FAULT_DELAY_MAX, FaultOp, Probability};
use tw_conf::units;

/// Delay of some operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Delay {
    span: Duration,
    probability: Probability,
}

/// Failure of operations that need space (`ENOSPC`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSpace {
    /// By chance.
    Chance(Probability),
    /// As soon as the files take so many bytes.
    Full(u64),
}

/// Delays and errors of operations, by chance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    delays: [Option<Delay>; FaultOp::COUNT],
    stall: Option<Delay>,
    io_error: Probability,
    no_space: NoSpace,
    /// Seed of all chances: the same operations in the same order have the same fate.
    pub seed: u64,
}

impl Default for Settings {
    /// A disk without faults.
    fn default() -> Self {
        Self {
            delays: [None; FaultOp::COUNT],
            stall: None,
            io_error: Probability::NEVER,
            no_space: NoSpace::Chance(Probability::NEVER),
            seed: 0,
        }
    }
}

impl Settings {
    /// Sets what `name` stands for, an option without its dashes: a kind of operation, `stall`, `eio`, `enospc` or `seed`. The
    /// error is a message.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let invalid = |what: &str| format!("invalid value \"{value}\" of \"{name}\": {what}");
        if let Some(op) = FaultOp::parse(name.as_bytes()) {
            let delay = Delay::parse(value, Some(Probability::ALWAYS));
            let delay = delay
                .ok_or_else(|| invalid("a time is needed (5ms), or a time and a probability (1s/0.1%)"))?;
            self.delays[op.index()] = Some(delay).filter(|delay| !delay.span.is_zero());
            return Ok(());
        }
        match name {
            "stall" => {
                let stall = Delay::parse(value, None);
                let stall = stall.ok_or_else(|| invalid("a time and a probability are needed (1s/0.1%)"))?;
                self.stall = Some(stall).filter(|stall| !stall.span.is_zero());
            }
            "eio" => {
                let probability = units::probability(value.as_bytes());
                self.io_error = probability.ok_or_else(|| invalid("a probability is needed (0.01%)"))?;
            }
            "enospc" => {
                let chance = units::probability(value.as_bytes()).map(NoSpace::Chance);
                let parsed = chance.or_else(|| units::offset(value.as_bytes()).map(NoSpace::Full));
                self.no_space =
                    parsed.ok_or_else(|| invalid("a probability (1%) or a size (512m) is needed"))?;
            }
            "seed" => {
                let seed = units::number(value.as_bytes());
                self.seed = seed.ok_or_else(|| invalid("a number is needed"))?;
            }
            _ => return Err(format!("unknown setting \"{name}\"")),
        }
        Ok(())
    }

    /// A disk without faults, with the same seed.
    pub(crate) fn without_faults(&self) -> Self {
        Self { seed: self.seed, ..Self::default() }
    }

    /// Bytes with which the disk is full, if it can be.
    pub fn capacity(&self) -> Option<u64> {
        match self.no_space {
            NoSpace::Full(bytes) => Some(bytes),
            NoSpace::Chance(_) => None,
        }
    }

    /// Delay and error of one operation, on a disk with so many bytes in its files.
    pub(crate) fn draw(
        &self,
        op: FaultOp,
        used: impl FnOnce() -> u64,
        rng: &mut Rng,
    ) -> (Duration, Option<Errno>) {
        let delays = [self.delays[op.index()], self.stall];
        let span = delays.into_iter().flatten().filter(|delay| delay.probability.draw(rng));
        let span = span.map(|delay| delay.span).sum();
        if self.io_error.draw(rng) {
            return (span, Some(Errno::IO));
        }
        let is_full = matches!(op, FaultOp::Write | FaultOp::Create)
            && match self.no_space {
                NoSpace::Chance(probability) => probability.draw(rng),
                NoSpace::Full(bytes) => used() >= bytes,
            };
        (span, is_full.then_some(Errno::NOSPC))
    }
}

impl Delay {
    /// Reads `TIME/PROBABILITY`, or `TIME` if there is a default of the probability.
    fn parse(text: &str, default: Option<Probability>) -> Option<Self> {
        let (span, probability) = match text.split_once('/') {
            Some((span, probability)) => (span, units::probability(probability.as_bytes())),
            None => (text, default),
        };
        let span = units::msec(span.as_bytes()).filter(|span| *span <= FAULT_DELAY_MAX)?;
        Some(Self { span, probability: probability? })
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.span.as_millis())?;
        match self.probability {
            Probability::ALWAYS => Ok(()),
            probability => write!(f, "/{probability}"),
        }
    }
}

/// As options are written: `--open 50ms --eio 0.01%`; `no faults` without any.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        for op in FaultOp::ALL {
            words.extend(self.delays[op.index()].map(|delay| format!("--{} {delay}", op.name())));
        }
        words.extend(self.stall.map(|stall| {
            let Delay { span, probability } = stall;
            format!("--stall {}ms/{probability}", span.as_millis())
        }));
        if self.io_error != Probability::NEVER {
            words.push(format!("--eio {}", self.io_error));
        }
        match self.no_space {
            NoSpace::Chance(Probability::NEVER) => {}
            NoSpace::Chance(probability) => words.push(format!("--enospc {probability}")),
            NoSpace::Full(bytes) => words.push(format!("--enospc {bytes}")),
        }
        if words.is_empty() { f.write_str("no faults") } else { f.write_str(&words.join(" ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(words: &[(&str, &str)]) -> Result<Settings, String> {
        let mut settings = Settings::default();
        words.iter().try_for_each(|(name, value)| settings.set(name, value)).map(|()| settings)
    }

    #[test]
    fn settings_are_shown_as_they_are_written() {
        for (words, shown) in [
            (&[][..], "no faults"),
            (&[("open", "50ms"), ("read", "1s/12.5%")], "--open 50ms --read 1000ms/12.5%"),
            (&[("stall", "1s/100%"), ("eio", "0.01%")], "--stall 1000ms/100% --eio 0.01%"),
            (&[("enospc", "90%")], "--enospc 90%"),
            (&[("enospc", "2k"), ("seed", "7")], "--enospc 2048"),
            (&[("fsync", "5ms"), ("fsync", "0")], "no faults"),
        ] {
            assert_eq!(set(words).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn bad_values_are_refused_with_what_is_needed() {
        for (name, value, message) in [
            (
                "open",
                "fast",
                "invalid value \"fast\" of \"open\": a time is needed (5ms), or a time and a probability (1s/0.1%)",
            ),
            (
                "open",
                "5ms/2",
                "invalid value \"5ms/2\" of \"open\": a time is needed (5ms), or a time and a probability (1s/0.1%)",
            ),
            (
                "read",
                "25h",
                "invalid value \"25h\" of \"read\": a time is needed (5ms), or a time and a probability (1s/0.1%)",
            ),
            (
                "stall",
                "1s",
                "invalid value \"1s\" of \"stall\": a time and a probability are needed (1s/0.1%)",
            ),
            ("eio", "1", "invalid value \"1\" of \"eio\": a probability is needed (0.01%)"),
            ("eio", "101%", "invalid value \"101%\" of \"eio\": a probability is needed (0.01%)"),
            (
                "enospc",
                "much",
                "invalid value \"much\" of \"enospc\": a probability (1%) or a size (512m) is needed",
            ),
            ("seed", "x", "invalid value \"x\" of \"seed\": a number is needed"),
            ("mkfs", "1", "unknown setting \"mkfs\""),
        ] {
            assert_eq!(set(&[(name, value)]), Err(message.to_owned()));
        }
    }

    #[test]
    fn operations_get_delays_and_errors_of_their_kind() {
        let settings = set(&[("open", "50ms"), ("stall", "1s/100%"), ("enospc", "1k")]).unwrap();
        let draw = |op, used| settings.draw(op, || used, &mut Rng::seeded(1));
        assert_eq!(draw(FaultOp::Open, 0), (Duration::from_millis(1050), None));
        assert_eq!(draw(FaultOp::Read, 2048), (Duration::from_secs(1), None));
        assert_eq!(draw(FaultOp::Write, 1023), (Duration::from_secs(1), None));
        assert_eq!(draw(FaultOp::Write, 1024), (Duration::from_secs(1), Some(Errno::NOSPC)));
        let failing = set(&[("eio", "100%")]).unwrap();
        let expected = (Duration::ZERO, Some(Errno::IO));
        assert_eq!(failing.draw(FaultOp::Stat, || 0, &mut Rng::seeded(1)), expected);
    }
}

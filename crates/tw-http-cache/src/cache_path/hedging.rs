//! `hedge=` and `hedge_max=` of `cache_path`.

use std::time::Duration;

use tw_conf::units;

/// Default of `hedge_max=`, in percent.
const PERCENT: u8 = 5;

/// Settings of the hedged reads of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hedging {
    /// Delay; `None` without hedging.
    pub(crate) delay: Option<HedgeDelay>,
    /// Fetches for a hundred lookups.
    pub(crate) percent: u8,
}

/// Time after which the upstream server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HedgeDelay {
    /// Measured.
    Auto,
    Fixed(Duration),
}

impl Hedging {
    /// No hedging.
    pub(crate) const OFF: Self = Self { delay: None, percent: PERCENT };

    /// Reads `hedge=`: `auto`, `off`, or a time.
    pub(crate) fn read_delay(&mut self, value: &[u8]) -> Result<(), ()> {
        self.delay = match value {
            b"off" => None,
            b"auto" => Some(HedgeDelay::Auto),
            _ => {
                let delay = units::msec(value).filter(|delay| !delay.is_zero()).ok_or(())?;
                Some(HedgeDelay::Fixed(delay))
            }
        };
        Ok(())
    }

    /// Reads `hedge_max=`: 1 to 100 percent.
    pub(crate) fn read_max(&mut self, value: &[u8]) -> Result<(), ()> {
        let percent = value.strip_suffix(b"%").and_then(units::number).filter(|p| (1..=100).contains(p));
        self.percent = percent.and_then(|percent| u8::try_from(percent).ok()).ok_or(())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn parameters_are_checked() {
        for (value, expected) in [
            (&b"off"[..], Ok(None)),
            (b"auto", Ok(Some(HedgeDelay::Auto))),
            (b"50ms", Ok(Some(HedgeDelay::Fixed(50 * MS)))),
            (b"0", Err(())),
            (b"", Err(())),
            (b"fast", Err(())),
        ] {
            let mut hedging = Hedging::OFF;
            assert_eq!(hedging.read_delay(value).map(|()| hedging.delay), expected);
        }
        for (value, expected) in
            [(&b"1%"[..], Ok(1)), (b"100%", Ok(100)), (b"5", Err(())), (b"0%", Err(())), (b"101%", Err(()))]
        {
            let mut hedging = Hedging::OFF;
            assert_eq!(hedging.read_max(value).map(|()| hedging.percent), expected);
        }
    }
}

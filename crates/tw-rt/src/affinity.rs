//! Processor affinity of workers (`worker_cpu_affinity`), and the number of processors for `worker_processes auto`.

use std::fmt;
use std::io;
use std::num::NonZero;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A set of processors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CpuMask(CpuSet);

/// Why a mask is refused, in nginx's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskError {
    /// More digits than the kernel has processors.
    TooLong,
    /// Neither `0` nor `1`.
    Character(char),
}

impl fmt::Display for MaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => {
                write!(f, "\"worker_cpu_affinity\" supports up to {} CPUs only", CpuSet::MAX_CPU)
            }
            Self::Character(c) => write!(f, "invalid character \"{c}\" in \"worker_cpu_affinity\""),
        }
    }
}

impl std::error::Error for MaskError {}

impl CpuMask {
    /// Reads a mask as nginx writes it: one digit per processor, processor 0 last: `0101` is 0 and 2.
    pub fn parse(text: &str) -> Result<Self, MaskError> {
        if text.len() > CpuSet::MAX_CPU {
            return Err(MaskError::TooLong);
        }
        let mut set = CpuSet::new();
        for (cpu, digit) in text.chars().rev().filter(|c| *c != ' ').enumerate() {
            match digit {
                '0' => {}
                '1' => set.set(cpu),
                other => return Err(MaskError::Character(other)),
            }
        }
        Ok(Self(set))
    }

    /// The processors that the calling thread may run on.
    pub fn of_current_thread() -> io::Result<Self> {
        Ok(Self(sched_getaffinity(None)?))
    }

    /// Lets the calling thread run on these processors only. Errors: `EINVAL` when none of them exists.
    pub fn pin_current_thread(&self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.0)?)
    }

    fn cpus(&self) -> impl Iterator<Item = usize> {
        (0..CpuSet::MAX_CPU).filter(|cpu| self.0.is_set(*cpu))
    }
}

/// As nginx writes masks: processor 0 last.
impl fmt::Debug for CpuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let highest = self.cpus().last().unwrap_or(0);
        (0..=highest).rev().try_for_each(|cpu| f.write_str(if self.0.is_set(cpu) { "1" } else { "0" }))
    }
}

/// `worker_cpu_affinity`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// Not said: every worker runs wherever the process may.
    #[default]
    Free,
    /// One mask per worker; further workers get the last.
    Masks(Vec<CpuMask>),
    /// `auto`: one processor per worker, in turn, of this set.
    Auto(CpuMask),
}

impl Affinity {
    /// The processors of worker `index`; `None` when it is not bound.
    pub fn of_worker(&self, index: usize) -> Option<CpuMask> {
        match self {
            Affinity::Free => None,
            Affinity::Masks(masks) => masks.get(index).or(masks.last()).copied(),
            Affinity::Auto(mask) => {
                let count = mask.cpus().count();
                let cpu = mask.cpus().nth(index.checked_rem(count)?)?;
                let mut one = CpuSet::new();
                one.set(cpu);
                Some(CpuMask(one))
            }
        }
    }
}

/// Number of workers for `worker_processes auto`: the processors that this process may use. Reads files: not on a
/// loop.
// DIFF(nginx): counts those that the affinity mask and the CPU quota of the cgroup leave, not those of the machine,
// so that a container with two processors gets two workers.
pub fn usable_cpus() -> NonZero<usize> {
    std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(text: &str) -> CpuMask {
        CpuMask::parse(text).unwrap()
    }

    #[test]
    fn masks() {
        let cases: &[(&str, Result<&[usize], MaskError>)] = &[
            ("1", Ok(&[0])),
            ("0101", Ok(&[0, 2])),
            ("10 01", Ok(&[0, 3])),
            ("0", Ok(&[])),
            ("", Ok(&[])),
            ("012", Err(MaskError::Character('2'))),
            ("1é", Err(MaskError::Character('é'))),
        ];
        for (text, expected) in cases {
            let got = CpuMask::parse(text).map(|mask| mask.cpus().collect::<Vec<_>>());
            assert_eq!(got, expected.map(<[usize]>::to_vec), "{text}");
        }
        assert_eq!(CpuMask::parse(&"1".repeat(1024)).unwrap().cpus().count(), 1024);
        assert_eq!(CpuMask::parse(&"1".repeat(1025)), Err(MaskError::TooLong));
        assert_eq!(format!("{:?}", mask("00101")), "101");
    }

    #[test]
    fn workers_get_their_masks() {
        let cases = [
            (Affinity::Free, [None, None, None]),
            (Affinity::Masks(vec![mask("01"), mask("10")]), [Some("01"), Some("10"), Some("10")]),
            (Affinity::Auto(mask("1010")), [Some("10"), Some("1000"), Some("10")]),
            (Affinity::Auto(mask("0")), [None, None, None]),
        ];
        for (affinity, expected) in cases {
            let got = [0, 1, 2].map(|index| affinity.of_worker(index));
            assert_eq!(got, expected.map(|text| text.map(mask)), "{affinity:?}");
        }
    }

    #[test]
    fn a_thread_can_be_pinned() {
        std::thread::spawn(|| {
            let allowed = CpuMask::of_current_thread().unwrap();
            let one = Affinity::Auto(allowed).of_worker(0).unwrap();
            one.pin_current_thread().unwrap();
            assert_eq!(CpuMask::of_current_thread().unwrap(), one);
            assert!(mask("0").pin_current_thread().is_err());
        })
        .join()
        .unwrap();
        assert!(usable_cpus().get() >= 1);
    }
}

//! Checks of fuzz targets, run over their checked-in inputs and over mutations of these from a fixed seed: fuzzing in
//! small, on every run of the tests, without a nightly compiler.

use std::path::PathBuf;

use crate::Random;

/// Minimum number of inputs for a meaningful test.
const INPUTS_MIN: usize = 10;
/// Mutations of one input at most.
const AT_ONCE_MAX: usize = 4;
const SEED: u64 = 0x7461_696c_7761_7465;

/// Mutations of the inputs of a target.
#[derive(Debug, Clone, Copy)]
pub struct Mutations<'a> {
    /// Number of mutated inputs to check.
    pub count: usize,
    /// Bytes that something gives a meaning to.
    pub alphabet: &'a [u8],
}

impl Mutations<'_> {
    /// Runs `check` over the inputs of `target`, an empty input, and mutated inputs.
    ///
    /// # Panics
    /// There are too few inputs, or one cannot be read; and panics of `check`.
    pub fn run(&self, target: &str, check: fn(&[u8])) {
        let inputs = inputs(target);
        inputs.iter().for_each(|input| check(input));
        check(b"");
        let mut random = Random::new(SEED);
        for _ in 0..self.count {
            let mut input = inputs[random.below(inputs.len())].clone();
            for _ in 0..=random.below(AT_ONCE_MAX) {
                self.mutate(&mut input, &mut random);
            }
            check(&input);
        }
    }

    fn mutate(&self, input: &mut Vec<u8>, random: &mut Random) {
        let at = random.below(input.len());
        match random.below(5) {
            0 => input.insert(at, random.one_of(self.alphabet)),
            1 if !input.is_empty() => input[at] = random.one_of(self.alphabet),
            2 if !input.is_empty() => drop(input.remove(at)),
            3 if !input.is_empty() => input[at] ^= 1 << random.below(8),
            _ => {
                let copy = input[at..at + random.below(input.len() - at)].to_vec();
                input.splice(at..at, copy);
            }
        }
    }
}

/// The inputs of a target, in the order of their names.
fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    assert!(paths.len() >= INPUTS_MIN, "few inputs in {}", folder.display());
    let read =
        |path: &PathBuf| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    paths.iter().map(read).collect()
}

//! The checks of the fuzz targets, run over their checked-in inputs and over mutations of these from a fixed seed.

use std::path::PathBuf;

use tw_testkit::Random;

#[path = "../../../fuzz/checks/cache_file.rs"]
mod cache_file;
#[path = "../../../fuzz/checks/cache_policy.rs"]
mod cache_policy;

/// Mutations per target: some seconds without optimisation.
const MUTATIONS: usize = 4000;

/// Bytes that something gives a meaning to.
const ALPHABET: &[u8] = b"\r\n\r\n \t:=,;\"\\*@()?0129aAzZ-_./\x00\x01\x7f\x80\xff";

fn run(target: &str, check: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).expect("the inputs are there");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    assert!(paths.len() >= 10, "few inputs in {}", folder.display());
    let inputs: Vec<_> =
        paths.iter().map(|path| std::fs::read(path).expect("an input can be read")).collect();
    inputs.iter().for_each(|input| check(input));
    check(b"");
    let mut random = Random::new(0x7477_6361_6368_6500);
    for _ in 0..MUTATIONS {
        let mut input = inputs[random.below(inputs.len())].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut input, &mut random);
        }
        check(&input);
    }
}

fn mutate(input: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(input.len());
    match random.below(5) {
        0 => input.insert(at, random.one_of(ALPHABET)),
        1 if !input.is_empty() => input[at] = random.one_of(ALPHABET),
        2 if !input.is_empty() => drop(input.remove(at)),
        3 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        _ => {
            let copy = input[at..at + random.below(input.len() - at)].to_vec();
            input.splice(at..at, copy);
        }
    }
}

#[test]
fn files_of_the_cache() {
    run("cache_file", cache_file::check);
}

#[test]
fn what_responses_and_requests_say() {
    run("cache_policy", cache_policy::check);
}

//! The checks of the fuzz targets of codecs, run over their checked-in inputs and over mutations of these from a fixed seed.

use std::path::PathBuf;

use tw_testkit::Random;

#[path = "../../../fuzz/checks/codecs.rs"]
mod codecs;

/// Mutations per target: some seconds without optimisation.
const MUTATIONS: usize = 3000;

/// Bytes that codecs treat specially.
const ALPHABET: &[u8] = b"\r\n :0129\x00\x01\x03\x06\x07\x08\xffVALUEND";

fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    assert!(paths.len() >= 10, "few inputs in {}", folder.display());
    let read =
        |path: &PathBuf| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    paths.iter().map(read).collect()
}

fn mutate(random: &mut Random, input: &mut Vec<u8>) {
    let at = random.below(input.len().max(1));
    let special = random.one_of(ALPHABET);
    match random.below(4) {
        1 if !input.is_empty() => input[at] = special,
        2 if !input.is_empty() => drop(input.remove(at)),
        3 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        _ => input.insert(at.min(input.len()), special),
    }
}

fn run(target: &str, check: fn(&[u8])) {
    let inputs = inputs(target);
    inputs.iter().for_each(|input| check(input));
    check(b"");
    let mut random = Random::new(7);
    for _ in 0..MUTATIONS {
        let mut input = inputs[random.below(inputs.len())].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut random, &mut input);
        }
        check(&input);
    }
}

#[test]
fn responses_in_fastcgi() {
    run("fastcgi", codecs::fastcgi);
}

#[test]
fn responses_of_applications() {
    run("application", codecs::application);
}

#[test]
fn responses_of_memcached() {
    run("memcached", codecs::memcached);
}

//! The checks of the fuzz targets, run over their checked-in inputs and over mutations of these from a fixed seed:
//! fuzzing in small, on every run of the tests, without a nightly compiler.

use std::path::PathBuf;

#[path = "../../../fuzz/checks/chunked.rs"]
mod chunked;
#[path = "../../../fuzz/checks/head.rs"]
mod head;
#[path = "../../../fuzz/checks/head_list.rs"]
mod head_list;
#[path = "../../../fuzz/checks/ranges.rs"]
mod ranges;
#[path = "../../../fuzz/checks/response_body.rs"]
mod response_body;
#[path = "../../../fuzz/checks/response_head.rs"]
mod response_head;

/// Mutations per target: some seconds without optimisation.
const MUTATIONS: usize = 3000;

/// Bytes that parsers treat specially, and some that they do not.
const ALPHABET: &[u8] = b"\r\n\r\n \t:/.%?#+0129aAfFzZ-_~\\\"<>[]@,;=*\x00\x01\x7f\x80\xff";

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

/// Marsaglia's xorshift64: any sequence will do, as long as it is the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len());
        let special = ALPHABET[self.below(ALPHABET.len())];
        match self.below(5) {
            0 => input.insert(at.min(input.len()), special),
            1 if !input.is_empty() => input[at] = special,
            2 if !input.is_empty() => drop(input.remove(at)),
            3 if !input.is_empty() => input[at] ^= 1 << self.below(8),
            _ => {
                let end = at + self.below(input.len() - at.min(input.len()));
                let copy = input.get(at..end).unwrap_or_default().to_vec();
                input.splice(at..at, copy);
            }
        }
    }
}

fn run(target: &str, check: fn(&[u8])) {
    let inputs = inputs(target);
    inputs.iter().for_each(|input| check(input));
    check(b"");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..MUTATIONS {
        let mut input = inputs[random.below(inputs.len())].clone();
        for _ in 0..=random.below(4) {
            random.mutate(&mut input);
        }
        check(&input);
    }
}

#[test]
fn heads() {
    run("head", head::check);
}

#[test]
fn lists_of_fields() {
    run("head_list", head_list::check);
}

#[test]
fn chunked_bodies() {
    run("chunked", chunked::check);
}

#[test]
fn ranges_and_conditions() {
    run("ranges", ranges::check);
}

#[test]
fn response_heads() {
    run("response_head", response_head::check);
}

#[test]
fn response_bodies() {
    run("response_body", response_body::check);
}

//! A decoded picture, and what is done with it: reduction, rotation, crop, sharpening. As libgd does it, of which nginx
//! makes use: a pixel of a reduced picture is the average of the area that it covers.

use std::ops::Range;

use super::orientation::Orientation;

/// Bytes of a pixel: red, green, blue, alpha.
pub(super) const PIXEL_LEN: usize = 4;

/// Pixels, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Picture {
    pub(super) width: u32,
    pub(super) height: u32,
    /// [`PIXEL_LEN`] bytes for each pixel.
    pub(super) pixels: Vec<u8>,
}

/// Rotation, counterclockwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rotation {
    By90,
    By180,
    By270,
}

impl Rotation {
    /// Rotation by so many degrees, if it is one of them.
    pub(super) fn of(degrees: u32) -> Option<Self> {
        match degrees {
            90 => Some(Self::By90),
            180 => Some(Self::By180),
            270 => Some(Self::By270),
            _ => None,
        }
    }

    /// Orientation of a picture that is upright after this rotation. EXIF's degrees are clockwise.
    pub(super) fn orientation(self) -> Orientation {
        match self {
            Self::By90 => Orientation::Turned270,
            Self::By180 => Orientation::Turned180,
            Self::By270 => Orientation::Turned90,
        }
    }
}

/// Pixels of a source row that one pixel of a reduced row covers.
struct Span {
    covered: Range<usize>,
    /// Covered part of the first and of the last of them.
    first: f32,
    last: f32,
}

impl Span {
    /// Spans of `to` pixels that cover `from` pixels.
    fn all(from: u32, to: u32) -> Vec<Self> {
        let scale = f64::from(from) / f64::from(to);
        (0..to)
            .map(|n| {
                let start = f64::from(n) * scale;
                let end = (f64::from(n + 1) * scale).min(from.into());
                let covered = start.floor() as usize..(end.ceil() as usize).min(from as usize);
                let first = 1.0 - (start - start.floor());
                let last = if end.fract() > 0.0 { end.fract() } else { 1.0 };
                Self { covered, first: first as f32, last: last as f32 }
            })
            .collect()
    }

    /// Covered part of pixel `at`.
    fn weight(&self, at: usize) -> f32 {
        let first = if at == self.covered.start { self.first } else { 1.0 };
        let last = if at + 1 == self.covered.end { self.last } else { 1.0 };
        (first + last - 1.0).max(0.0)
    }
}

impl Picture {
    fn row(&self, y: usize) -> &[u8] {
        let len = self.width as usize * PIXEL_LEN;
        self.pixels.get(y * len..(y + 1) * len).unwrap_or_default()
    }

    /// The picture with fewer pixels; neither side becomes longer. Transparent pixels lend no colour to others.
    pub(super) fn reduced(&self, width: u32, height: u32) -> Self {
        let columns = Span::all(self.width, width);
        let mut pixels = Vec::with_capacity(width as usize * height as usize * PIXEL_LEN);
        let mut sums = vec![[0_f32; PIXEL_LEN]; columns.len()];
        for span in Span::all(self.height, height) {
            sums.fill([0.0; PIXEL_LEN]);
            let mut area = 0.0;
            for y in span.covered.clone() {
                let weight = span.weight(y);
                area += weight;
                add_row(self.row(y), weight, &columns, &mut sums);
            }
            for (sum, column) in sums.iter().zip(&columns) {
                let area = area * column.covered.clone().map(|x| column.weight(x)).sum::<f32>();
                let [red, green, blue, alpha] = *sum;
                let colour = |sum: f32| if alpha > 0.0 { (sum / alpha).round() as u8 } else { 0 };
                pixels.extend([colour(red), colour(green), colour(blue), (alpha / area).round() as u8]);
            }
        }
        Self { width, height, pixels }
    }

    /// The picture upright, if it is stored with this orientation.
    pub(super) fn upright(&self, orientation: Orientation) -> Self {
        let stored = (self.width as usize, self.height as usize);
        let (width, height) = orientation.sides(stored);
        let mut pixels = Vec::with_capacity(self.pixels.len());
        for y in 0..height {
            for x in 0..width {
                let (column, row) = orientation.stored((x, y), stored);
                let at = (row * stored.0 + column) * PIXEL_LEN;
                pixels.extend_from_slice(self.pixels.get(at..at + PIXEL_LEN).unwrap_or(&[0; PIXEL_LEN]));
            }
        }
        Self { width: width as u32, height: height as u32, pixels }
    }

    /// The middle of the picture, at most of this size.
    pub(super) fn cropped(&self, width: u32, height: u32) -> Self {
        let new_width = self.width.min(width);
        let new_height = self.height.min(height);
        let remaining = (self.width - new_width) / 2;
        let top = (self.height - new_height) / 2;
        let columns = remaining as usize * PIXEL_LEN..(remaining + new_width) as usize * PIXEL_LEN;
        let rows = top as usize..(top + new_height) as usize;
        let pixels =
            rows.flat_map(|y| self.row(y).get(columns.clone()).unwrap_or_default()).copied().collect();
        Self { width: new_width, height: new_height, pixels }
    }

    /// Sharpens by a filter of three pixels in both directions: with 100 percent -1/4, 6/4, -1/4.
    pub(super) fn sharpen(&mut self, percent: u32) {
        let outer = -(percent as f32) / 400.0;
        let inner = 1.0 - 2.0 * outer;
        let row = self.width as usize * PIXEL_LEN;
        for step in [PIXEL_LEN, row] {
            // Lines along the direction: bytes of a line are `step` apart.
            let line = if step == PIXEL_LEN { row } else { self.pixels.len() };
            for start in (0..self.pixels.len()).step_by(line.max(1)) {
                for first in start..start + step {
                    if first % PIXEL_LEN < PIXEL_LEN - 1 {
                        sharpen_line(&mut self.pixels, (first..start + line).step_by(step), inner, outer);
                    }
                }
            }
        }
    }

    /// Makes every pixel opaque.
    pub(super) fn drop_transparency(&mut self) {
        self.pixels.iter_mut().skip(PIXEL_LEN - 1).step_by(PIXEL_LEN).for_each(|alpha| *alpha = u8::MAX);
    }

    /// Returns true if no pixel is transparent.
    pub(super) fn is_opaque(&self) -> bool {
        self.pixels.iter().skip(PIXEL_LEN - 1).step_by(PIXEL_LEN).all(|alpha| *alpha == u8::MAX)
    }
}

/// Adds a row of the source to the sums of a reduced row: colours by their alpha, then alpha.
fn add_row(row: &[u8], row_weight: f32, columns: &[Span], sums: &mut [[f32; PIXEL_LEN]]) {
    let (row, _) = row.as_chunks::<PIXEL_LEN>();
    for (sum, column) in sums.iter_mut().zip(columns) {
        let pixels = row.get(column.covered.clone()).unwrap_or_default();
        for (pixel, x) in pixels.iter().zip(column.covered.clone()) {
            let [red, green, blue, alpha] = pixel.map(f32::from);
            let weight = row_weight * column.weight(x) * alpha;
            sum[0] += red * weight;
            sum[1] += green * weight;
            sum[2] += blue * weight;
            sum[3] += weight;
        }
    }
}

/// Sharpens the bytes at these places, which are neighbours.
fn sharpen_line(pixels: &mut [u8], places: impl Iterator<Item = usize> + Clone, inner: f32, outer: f32) {
    let mut before = None;
    let mut next = places.clone().skip(1);
    for at in places {
        let Some(this) = pixels.get(at).copied() else { return };
        let after = next.next().and_then(|at| pixels.get(at)).copied().unwrap_or(this);
        let around = f32::from(before.unwrap_or(this)) + f32::from(after);
        if let Some(pixel) = pixels.get_mut(at) {
            *pixel = (f32::from(this) * inner + around * outer).round() as u8;
        }
        before = Some(this);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture whose opaque pixels have these levels of grey.
    fn grey(width: u32, levels: &[u8]) -> Picture {
        let pixels = levels.iter().flat_map(|level| [*level, *level, *level, 255]).collect();
        Picture { width, height: levels.len() as u32 / width, pixels }
    }

    #[test]
    fn reduction_averages_the_covered_area() {
        let four = grey(4, &[0, 100, 200, 240, 0, 100, 200, 240, 8, 8, 8, 8, 8, 8, 8, 8]);
        assert_eq!(four.reduced(2, 2), grey(2, &[50, 220, 8, 8]));
        assert_eq!(four.reduced(4, 4), four);
        assert_eq!(four.reduced(1, 1), grey(1, &[72]));
        // A pixel that covers one and a half.
        assert_eq!(grey(3, &[0, 90, 180]).reduced(2, 1), grey(2, &[30, 150]));
        assert_eq!(grey(1, &[0, 90, 180]).reduced(1, 2), grey(1, &[30, 150]));
    }

    #[test]
    fn transparent_pixels_lend_no_colour() {
        let pixels = vec![200, 100, 50, 255, 0, 0, 0, 0];
        let half = Picture { width: 2, height: 1, pixels }.reduced(1, 1);
        assert_eq!(half.pixels, [200, 100, 50, 128]);
        let mut none = Picture { width: 2, height: 1, pixels: vec![9; 8] };
        assert!(!none.is_opaque());
        none.drop_transparency();
        assert!(none.is_opaque());
    }

    #[test]
    fn rotations_are_counterclockwise() {
        let six = grey(3, &[1, 2, 3, 4, 5, 6]);
        let rotated = |by: Rotation| six.upright(by.orientation());
        assert_eq!(rotated(Rotation::By90), grey(2, &[3, 6, 2, 5, 1, 4]));
        assert_eq!(rotated(Rotation::By180), grey(3, &[6, 5, 4, 3, 2, 1]));
        assert_eq!(rotated(Rotation::By270), grey(2, &[4, 1, 5, 2, 6, 3]));
        assert_eq!(
            [90, 180, 270, 0, 91].map(Rotation::of).map(|by| by.is_some()),
            [true, true, true, false, false]
        );
    }

    #[test]
    fn pictures_of_every_orientation_become_upright() {
        let upright = grey(3, &[1, 2, 3, 4, 5, 6]);
        for (orientation, stored) in [
            (Orientation::Upright, grey(3, &[1, 2, 3, 4, 5, 6])),
            (Orientation::Mirrored, grey(3, &[3, 2, 1, 6, 5, 4])),
            (Orientation::Turned180, grey(3, &[6, 5, 4, 3, 2, 1])),
            (Orientation::MirroredTurned180, grey(3, &[4, 5, 6, 1, 2, 3])),
            // The first row is shown on the left, the first column above.
            (Orientation::Transposed, grey(2, &[1, 4, 2, 5, 3, 6])),
            // On the right, above.
            (Orientation::Turned90, grey(2, &[3, 6, 2, 5, 1, 4])),
            // On the right, below.
            (Orientation::Transversed, grey(2, &[6, 3, 5, 2, 4, 1])),
            // On the left, below.
            (Orientation::Turned270, grey(2, &[4, 1, 5, 2, 6, 3])),
        ] {
            assert_eq!(stored.upright(orientation), upright, "{orientation:?}");
        }
    }

    #[test]
    fn crop_takes_the_middle() {
        let nine = grey(3, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(nine.cropped(1, 1), grey(1, &[5]));
        assert_eq!(nine.cropped(9, 1), grey(3, &[4, 5, 6]));
        assert_eq!(nine.cropped(2, 3), grey(2, &[1, 2, 4, 5, 7, 8]));
    }

    #[test]
    fn sharpening_raises_contrast_of_edges_only() {
        let mut flat = grey(3, &[70; 9]);
        flat.sharpen(100);
        assert_eq!(flat, grey(3, &[70; 9]));
        let mut edge = grey(4, &[100, 100, 200, 200]);
        edge.sharpen(100);
        assert_eq!(edge, grey(4, &[100, 75, 225, 200]));
        let mut column = grey(1, &[0, 0, 255, 255]);
        column.sharpen(400);
        assert_eq!(column, grey(1, &[0, 0, 255, 255]));
    }
}

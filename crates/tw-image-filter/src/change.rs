//! Change of one picture: decoded, reduced, turned, cropped, sharpened, encoded. In nginx's order: a picture is turned after
//! it is reduced, and cropped after it is turned. One that is stored in another orientation is made upright first, as far as
//! sizes go.

use super::codec::{self, CodecError};
use super::format::PictureFormat;
use super::orientation::Orientation;
use super::picture::Rotation;

/// New shape of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// As it is.
    Same,
    /// Reduced until both sides fit (`resize`).
    Within { width: u32, height: u32 },
    /// Reduced until the larger side fits, and cut off on the other one (`crop`).
    Filled { width: u32, height: u32 },
}

/// Change of a picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) format: PictureFormat,
    pub(super) orientation: Orientation,
    pub(super) shape: Shape,
    pub(super) rotation: Option<Rotation>,
    /// Percent.
    pub(super) sharpen: u32,
    /// Of the colours of a palette.
    pub(super) keeps_transparency: bool,
    /// Of JPEG, from 1 to 100.
    pub(super) quality: u8,
    pub(super) max_pixels: u64,
}

impl Change {
    /// Makes the new file. Cost: up to some 100 ns for each pixel of the old one.
    pub(super) fn run(&self, file: &[u8]) -> Result<Vec<u8>, CodecError> {
        let mut picture = codec::decode(self.format, file, self.max_pixels)?;
        if !self.keeps_transparency && self.format.has_palette(file) {
            picture.drop_transparency();
        }
        let stored = (picture.width, picture.height);
        let (width, height) = self.orientation.sides(stored);
        // A smaller picture is turned at less cost.
        let reduced = self.orientation.sides(self.shape.reduced(width, height));
        if reduced != stored {
            picture = picture.reduced(reduced.0, reduced.1);
        }
        for orientation in [Some(self.orientation), self.rotation.map(Rotation::orientation)] {
            match orientation {
                None | Some(Orientation::Upright) => {}
                Some(orientation) => picture = picture.upright(orientation),
            }
        }
        if let Shape::Filled { width, height } = self.shape
            && (picture.width > width || picture.height > height)
        {
            picture = picture.cropped(width, height);
        }
        if self.sharpen > 0 {
            picture.sharpen(self.sharpen);
        }
        codec::encode(self.format, picture, self.quality)
    }
}

impl Shape {
    /// Size to which a picture of this size is reduced.
    fn reduced(self, width: u32, height: u32) -> (u32, u32) {
        // A side in proportion to the other one, at least one pixel.
        let scaled = |side: u32, new: u32, old: u32| {
            let scaled = u64::from(side) * u64::from(new) / u64::from(old.max(1));
            u32::try_from(scaled).unwrap_or(u32::MAX).max(1)
        };
        match self {
            Self::Same => (width, height),
            Self::Within { width: max_width, height: max_height } => {
                let mut width = width;
                let mut height = height;
                if width > max_width {
                    (width, height) = (max_width, scaled(height, max_width, width));
                }
                if height > max_height {
                    (width, height) = (scaled(width, max_height, height), max_height);
                }
                (width, height)
            }
            Self::Filled { width: max_width, height: max_height } => {
                let is_tall =
                    u64::from(width) * u64::from(max_height) < u64::from(max_width) * u64::from(height);
                if is_tall && width > max_width {
                    (max_width, scaled(height, max_width, width))
                } else if !is_tall && height > max_height {
                    (scaled(width, max_height, height), max_height)
                } else {
                    (width, height)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Picture;

    #[test]
    fn sides_are_reduced_in_proportion() {
        let within = |width, height| Shape::Within { width, height };
        let filled = |width, height| Shape::Filled { width, height };
        for (shape, from, expected) in [
            (Shape::Same, (40, 30), (40, 30)),
            (within(20, 20), (40, 30), (20, 15)),
            (within(20, 10), (40, 30), (13, 10)),
            (within(100, 100), (40, 30), (40, 30)),
            (within(u32::MAX, 15), (40, 30), (20, 15)),
            (within(1, u32::MAX), (4000, 3), (1, 1)),
            (filled(20, 20), (40, 30), (26, 20)),
            (filled(20, 10), (40, 30), (20, 15)),
            (filled(10, 30), (40, 30), (40, 30)),
            (filled(u32::MAX, 10), (40, 30), (40, 30)),
            (filled(10, 100), (40, 30), (40, 30)),
        ] {
            assert_eq!(shape.reduced(from.0, from.1), expected, "{shape:?} {from:?}");
        }
    }

    #[test]
    fn pictures_are_changed() {
        let original = Picture { width: 40, height: 30, pixels: [9, 99, 199, 255].repeat(1200) };
        let file = codec::encode(PictureFormat::Png, original, 0).unwrap();
        let change = Change {
            format: PictureFormat::Png,
            orientation: Orientation::Upright,
            shape: Shape::Same,
            rotation: None,
            sharpen: 0,
            keeps_transparency: true,
            quality: 75,
            max_pixels: 1200,
        };
        let [width, height] = [20, 20];
        for (change, expected) in [
            (Change { rotation: Some(Rotation::By90), ..change }, (30, 40)),
            (Change { shape: Shape::Within { width, height }, ..change }, (20, 15)),
            (Change { shape: Shape::Filled { width, height }, ..change }, (20, 20)),
            (
                Change { shape: Shape::Within { width, height }, rotation: Some(Rotation::By270), ..change },
                (15, 20),
            ),
            (
                Change {
                    shape: Shape::Filled { width: 20, height: 10 },
                    rotation: Some(Rotation::By90),
                    ..change
                },
                (15, 10),
            ),
            (Change { sharpen: 50, ..change }, (40, 30)),
            (Change { orientation: Orientation::Turned90, ..change }, (30, 40)),
            (
                Change {
                    orientation: Orientation::Turned90,
                    shape: Shape::Within { width: 30, height: 20 },
                    ..change
                },
                (15, 20),
            ),
            (
                Change {
                    orientation: Orientation::Transposed,
                    shape: Shape::Filled { width: 30, height: 20 },
                    rotation: Some(Rotation::By90),
                    ..change
                },
                (30, 20),
            ),
        ] {
            let header = PictureFormat::Png.header(&change.run(&file).unwrap()).unwrap();
            assert_eq!((header.width, header.height), expected, "{change:?}");
        }
        assert!(Change { max_pixels: 1199, ..change }.run(&file).is_err());
    }
}

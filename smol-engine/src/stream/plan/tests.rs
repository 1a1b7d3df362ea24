//! What pieces there are, and what memory they need.

use super::*;
use crate::io::Mode;
use crate::stream::Packer;
use std::path::Path;

#[derive(Debug)]
struct Blank {
    len: u64,
    alignment: usize,
}

impl ReadAt for Blank {
    fn read_at(&self, _: &mut [u8], _: u64) -> std::io::Result<usize> {
        Ok(0)
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn path(&self) -> &Path {
        Path::new("blank")
    }

    fn mode(&self) -> &Mode {
        &Mode::Direct
    }

    fn check_unchanged(&self) -> crate::io::Result<()> {
        Ok(())
    }
}

fn files(len: u64, alignment: usize) -> Vec<Arc<dyn ReadAt>> {
    vec![Arc::new(Blank { len, alignment })]
}

struct Copies;

impl Packer for Copies {
    fn pack(&self, plain: &[u8], packed: &mut [u8]) {
        packed[..plain.len()].copy_from_slice(plain);
    }
}

fn plain(offset: u64, row_bytes: usize, rows: u64) -> StreamTensor {
    let file_bytes = row_bytes as u64 * rows;
    StreamTensor {
        name: "blk.0.attn_q.weight".to_owned(),
        file: 0,
        offset,
        file_bytes,
        bytes: file_bytes as usize,
        row_bytes,
        rows,
        packed: None,
        packer: None,
        group_rows: 0,
    }
}

/// A tensor whose groups take `packed` bytes each in memory.
fn packed(
    offset: u64,
    row_bytes: usize,
    rows: u64,
    group_rows: usize,
    packed: usize,
) -> StreamTensor {
    StreamTensor {
        bytes: rows.div_ceil(group_rows as u64) as usize * packed,
        packer: Some(Arc::new(Copies)),
        group_rows,
        ..plain(offset, row_bytes, rows)
    }
}

fn place(file: usize, offset: u64) -> Option<PackedPlace> {
    Some(PackedPlace { file, offset })
}

fn config(zone: u64, readers: usize, verify: bool) -> StreamConfig {
    StreamConfig { zone, readers, verify, ..StreamConfig::default() }
}

#[test]
fn what_lies_packed_is_read_like_plain_bytes_and_needs_no_buffers() {
    let files = files(1 << 20, 4096);
    let made = packed(1000, 100, 333, 5, 640);
    let there = StreamTensor { packed: place(0, 4096 * 50 + 128), ..made.clone() };
    let alone = |tensor| Plan::with(&files, &[tensor], false, 3, 8192);
    let (made, there) = (alone(made), alone(there));
    let same = alone(plain(4096 * 50 + 128, 640, 67));
    assert_eq!(there.tensors[0].pieces, same.tensors[0].pieces);
    assert_eq!((there.tensors[0].skew, there.bounce_room), (128, 0));
    assert!(made.bounce_room > 0 && there.floor() < made.floor());
}

#[test]
fn plain_pieces_are_the_blocks_of_the_file() {
    for alignment in [1, 512, 4096] {
        for offset in [0, 32, 4096, 5000, 123_456] {
            for rows in [1, 7, 333] {
                let tensor = plain(offset, 100, rows);
                let files = files(200_000, alignment);
                let plan = Plan::with(&files, &[tensor], false, 1, 8192);
                let plan = &plan.tensors[0];
                let mut end = offset;
                for (number, piece) in plan.pieces.iter().enumerate() {
                    assert_eq!(piece.offset, end);
                    end += piece.len as u64;
                    // The read starts at a block, and its place is as long as what it brings.
                    let skew = readers::skew(&*files[0], piece.offset) as u64;
                    assert!(piece.begin.is_multiple_of(alignment as u64));
                    assert_eq!(piece.begin, number as u64 * 8192);
                    assert_eq!(piece.begin + skew, plan.skew as u64 + piece.offset - offset);
                    let room = readers::room(&*files[0], piece.offset, piece.len) as u64;
                    assert_eq!(piece.end - piece.begin, room);
                    let next = plan.pieces.get(number + 1);
                    assert!(next.is_none_or(|next| next.begin == piece.end));
                }
                assert_eq!(end, offset + rows * 100);
                assert!(plan.room >= plan.pieces.last().unwrap().end);
                assert!(plan.room.is_multiple_of(alignment.max(64) as u64));
            }
        }
    }
}

#[test]
fn packed_pieces_are_groups_at_aligned_places() {
    for (group_rows, bytes) in [(1, 100), (4, 460), (8, 1024), (16, 1601), (5, 96)] {
        for rows in [1, 16, 333, 1000] {
            let tensor = packed(77, 100, rows, group_rows, bytes);
            for read in [4096, 8192, 65_536] {
                let pieces = packed_pieces(&tensor, read);
                let (mut offset, mut begin) = (77, 0);
                for piece in &pieces {
                    assert_eq!((piece.offset, piece.begin), (offset, begin));
                    assert!(piece.begin.is_multiple_of(64));
                    assert!((offset - 77).is_multiple_of(100 * group_rows as u64));
                    (offset, begin) = (offset + piece.len as u64, piece.end);
                }
                assert_eq!((offset, begin), (77 + rows * 100, tensor.bytes as u64));
                // As many reads as that takes, unless the groups are so large.
                let unit = 64 * group_rows * 100;
                let most = (rows as usize * 100).div_ceil(read.saturating_sub(unit).max(1));
                assert!(unit > read || pieces.len() <= most, "{} {most}", pieces.len());
            }
        }
    }
    // What does not come in groups comes as a whole.
    for change in [
        (|tensor| tensor.group_rows = 0) as fn(&mut StreamTensor),
        |tensor| tensor.row_bytes = 0,
        |tensor| tensor.bytes += 1,
    ] {
        let mut tensor = packed(77, 100, 1000, 8, 1024);
        change(&mut tensor);
        assert_eq!(packed_pieces(&tensor, 4096).len(), 1);
    }
}

#[test]
fn rings_and_buffers_fit_in_the_zone() {
    let tensors = [
        plain(100, 1000, 400),
        packed(400_100, 1000, 300, 8, 9000),
        packed(700_100, 100, 10, 10, 1100),
        StreamTensor { bytes: 0, ..plain(0, 10_000, 100_000) },
    ];
    for alignment in [1, 4096, 16_384] {
        let files = files(2_000_000_000, alignment);
        for (readers, verify) in [(0, false), (1, true), (3, false), (0, true), (8, true)] {
            let floor = Plan::least(&files, &tensors, &config(0, readers, verify), READS);
            assert!(floor > 400_000 && floor < 2_500_000, "only what is kept counts: {floor}");
            let too_small = Plan::new(&files, &tensors, &config(floor - 1, readers, verify), READS);
            let Err(Error::Zone { floor: told, zone }) = too_small else {
                panic!("below the floor")
            };
            assert_eq!((told, zone), (floor, floor - 1));
            for more in [0, 1, 999, 65_536, 300_001, 10_000_000, u64::MAX - floor] {
                let zone = floor + more;
                let plan =
                    Plan::new(&files, &tensors, &config(zone, readers, verify), READS).unwrap();
                let ring = plan.ring(zone);
                assert!(plan.bytes(ring) <= zone, "{} {zone}", plan.bytes(ring));
                assert!(ring >= plan.largest && ring <= plan.total);
                assert!(ring.is_multiple_of(plan.alignment as u64));
                assert!(plan.readers == readers || readers == 0);
                assert!(more < 10_000_000 || ring == plan.total);
                assert_eq!(plan.ring(0), plan.largest);
            }
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let files = files(100_000, 512);
    let check = |change: fn(&mut StreamTensor)| {
        let mut tensor = plain(1000, 100, 50);
        change(&mut tensor);
        let tensors = [plain(0, 10, 10), tensor];
        assert_eq!(Plan::least(&files, &tensors, &config(0, 0, false), READS), u64::MAX);
        Plan::new(&files, &tensors, &config(u64::MAX, 0, false), READS).unwrap_err().to_string()
    };
    for (change, text) in [
        ((|tensor| tensor.file = 1) as fn(&mut StreamTensor), "file 1 of 1"),
        (|tensor| tensor.offset = 99_000, "ends at byte 100000"),
        (|tensor| tensor.offset = u64::MAX, "ends at byte 100000"),
        (|tensor| tensor.bytes += 1, "5001 bytes of 5000"),
        (|tensor| tensor.rows = 51, "51 rows of 100 bytes are not 5000"),
        (|tensor| tensor.rows = u64::MAX, "are not 5000"),
        (|tensor| (tensor.bytes, tensor.row_bytes) = (0, 0), "neither"),
        (
            |tensor| (tensor.file_bytes, tensor.bytes, tensor.rows) = (0, 0, 0),
            "0 bytes in the file",
        ),
        (|tensor| tensor.packed = place(1, 0), "file 1 of 1"),
        (|tensor| tensor.packed = place(0, 99_968), "ends at byte 100000"),
        (|tensor| tensor.packed = place(0, 32), "packed at 32"),
        (|tensor| (tensor.packed, tensor.bytes) = (place(0, 0), 0), "0 bytes of it are packed"),
        (
            |tensor| *tensor = StreamTensor { bytes: usize::MAX, ..packed(1000, 100, 50, 5, 64) },
            "in memory",
        ),
    ] {
        let told = check(change);
        assert!(told.contains(text), "{told}");
    }
    let none = Plan::new(&files, &[], &config(0, 0, false), READS).unwrap_err();
    assert!(none.to_string().contains("no tensors"));
}

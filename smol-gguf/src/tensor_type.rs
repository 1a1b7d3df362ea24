//! The element types of tensors, with the size of their blocks.

use std::fmt;

macro_rules! tensor_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $block_len:literal, $block_bytes:literal;)*) => {
        /// How the elements of a tensor are stored.
        ///
        /// Quantized types store a row as a sequence of blocks, each with its own scale; the
        /// length of a row must be a multiple of [`block_len`](Self::block_len).
        ///
        /// # Examples
        ///
        /// ```
        /// use smol_gguf::TensorType;
        ///
        /// assert_eq!(TensorType::Q4_0.block_len(), 32);
        /// assert_eq!(TensorType::Q4_0.row_bytes(64), Some(36));
        /// assert_eq!(TensorType::Q4_0.row_bytes(65), None);
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        #[non_exhaustive]
        #[allow(non_camel_case_types)]
        pub enum TensorType {
            $($(#[$doc])* $variant = $id,)*
        }

        impl TensorType {
            /// Every type, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the type with this number in a file, if it exists.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the name that llama.cpp prints, such as `q4_K`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns the number of elements in a block; 1 for unquantized types.
            pub const fn block_len(self) -> u64 {
                match self {
                    $(Self::$variant => $block_len,)*
                }
            }

            /// Returns the size of a block in bytes.
            pub const fn block_bytes(self) -> u64 {
                match self {
                    $(Self::$variant => $block_bytes,)*
                }
            }
        }
    };
}

tensor_types! {
    /// 32-bit floating point.
    F32 = 0, "f32", 1, 4;
    /// 16-bit floating point, IEEE half precision.
    F16 = 1, "f16", 1, 2;
    /// 4 bits, one scale for 32.
    Q4_0 = 2, "q4_0", 32, 18;
    /// 4 bits, scale and minimum for 32.
    Q4_1 = 3, "q4_1", 32, 20;
    /// 5 bits, one scale for 32.
    Q5_0 = 6, "q5_0", 32, 22;
    /// 5 bits, scale and minimum for 32.
    Q5_1 = 7, "q5_1", 32, 24;
    /// 8 bits, one scale for 32.
    Q8_0 = 8, "q8_0", 32, 34;
    /// 8 bits, scale and sum for 32; an intermediate format of activations.
    Q8_1 = 9, "q8_1", 32, 36;
    /// 2 bits in superblocks of 256, with minimums.
    Q2_K = 10, "q2_K", 256, 84;
    /// 3 bits in superblocks of 256.
    Q3_K = 11, "q3_K", 256, 110;
    /// 4 bits in superblocks of 256, with minimums.
    Q4_K = 12, "q4_K", 256, 144;
    /// 5 bits in superblocks of 256, with minimums.
    Q5_K = 13, "q5_K", 256, 176;
    /// 6 bits in superblocks of 256.
    Q6_K = 14, "q6_K", 256, 210;
    /// 8 bits in superblocks of 256; an intermediate format of activations.
    Q8_K = 15, "q8_K", 256, 292;
    /// 2.06 bits, codebook.
    IQ2_XXS = 16, "iq2_xxs", 256, 66;
    /// 2.31 bits, codebook.
    IQ2_XS = 17, "iq2_xs", 256, 74;
    /// 3.06 bits, codebook.
    IQ3_XXS = 18, "iq3_xxs", 256, 98;
    /// 1.56 bits, codebook.
    IQ1_S = 19, "iq1_s", 256, 50;
    /// 4 bits, non-linear levels, one scale for 32.
    IQ4_NL = 20, "iq4_nl", 32, 18;
    /// 3.44 bits, codebook.
    IQ3_S = 21, "iq3_s", 256, 110;
    /// 2.56 bits, codebook.
    IQ2_S = 22, "iq2_s", 256, 82;
    /// 4.25 bits, non-linear levels in superblocks of 256.
    IQ4_XS = 23, "iq4_xs", 256, 136;
    /// 8-bit signed integers.
    I8 = 24, "i8", 1, 1;
    /// 16-bit signed integers.
    I16 = 25, "i16", 1, 2;
    /// 32-bit signed integers.
    I32 = 26, "i32", 1, 4;
    /// 64-bit signed integers.
    I64 = 27, "i64", 1, 8;
    /// 64-bit floating point.
    F64 = 28, "f64", 1, 8;
    /// 1.75 bits, codebook; the scale is spread over the block's scale words.
    IQ1_M = 29, "iq1_m", 256, 56;
    /// 16-bit floating point with the exponent of `F32`.
    BF16 = 30, "bf16", 1, 2;
    /// Ternary, 5 values a byte.
    TQ1_0 = 34, "tq1_0", 256, 54;
    /// Ternary, 4 values a byte.
    TQ2_0 = 35, "tq2_0", 256, 66;
    /// 4-bit floating point, one power-of-two scale for 32.
    MXFP4 = 39, "mxfp4", 32, 17;
    /// 4-bit floating point, an 8-bit floating-point scale for 16, blocks of 64.
    NVFP4 = 40, "nvfp4", 64, 36;
    /// 1 bit, one scale for 128.
    Q1_0 = 41, "q1_0", 128, 18;
    /// 2 bits, one scale for 64.
    Q2_0 = 42, "q2_0", 64, 18;
    /// 8-bit floating point, 4 bits of exponent.
    F8_E4M3 = 43, "f8_e4m3", 1, 1;
}

impl TensorType {
    /// Returns the number that stands for this type in a file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Reports whether elements are stored in blocks with scales.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Returns the size in bytes of a row of `ne0` elements.
    ///
    /// `None` if the row isn't a whole number of blocks or the size exceeds `u64`.
    pub const fn row_bytes(self, ne0: u64) -> Option<u64> {
        if !ne0.is_multiple_of(self.block_len()) {
            return None;
        }
        (ne0 / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Returns the storage cost in bits an element, scales included.
    pub const fn bits_per_element(self) -> f64 {
        self.block_bytes() as f64 * 8.0 / self.block_len() as f64
    }

    /// Returns the type with this name (`Q4_K`, `q4_k`, ...), ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// Returns the former name of a number that files no longer use.
    pub(crate) const fn removed_name(id: u32) -> Option<&'static str> {
        match id {
            4 => Some("q4_2"),
            5 => Some("q4_3"),
            31 => Some("q4_0_4_4"),
            32 => Some("q4_0_4_8"),
            33 => Some("q4_0_8_8"),
            36 => Some("iq4_nl_4_4"),
            37 => Some("iq4_nl_4_8"),
            38 => Some("iq4_nl_8_8"),
            _ => None,
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_find_their_type() {
        for &ty in TensorType::ALL {
            assert_eq!(TensorType::from_id(ty.id()), Some(ty));
            assert_eq!(TensorType::from_name(ty.name()), Some(ty));
            assert_eq!(TensorType::removed_name(ty.id()), None);
        }
        let known: Vec<u32> = (0..100).filter(|&id| TensorType::from_id(id).is_some()).collect();
        assert_eq!(known.len(), TensorType::ALL.len());
        // Each number up to the last is either a type or a removed one.
        for id in 0..=43 {
            assert!(TensorType::from_id(id).is_some() != TensorType::removed_name(id).is_some());
        }
    }

    #[test]
    fn sizes_follow_from_the_fields_of_a_block() {
        // (type, bytes of scales and other side data, bits of quantized values)
        let blocks = [
            (TensorType::Q4_0, 2, 4 * 32),
            (TensorType::Q4_1, 4, 4 * 32),
            (TensorType::Q5_0, 2, 5 * 32),
            (TensorType::Q5_1, 4, 5 * 32),
            (TensorType::Q8_0, 2, 8 * 32),
            (TensorType::Q8_1, 4, 8 * 32),
            (TensorType::Q2_K, 4 + 16, 2 * 256),
            (TensorType::Q3_K, 2 + 12, 3 * 256),
            (TensorType::Q4_K, 4 + 12, 4 * 256),
            (TensorType::Q5_K, 4 + 12, 5 * 256),
            (TensorType::Q6_K, 2 + 16, 6 * 256),
            (TensorType::Q8_K, 4 + 32, 8 * 256),
            (TensorType::IQ4_NL, 2, 4 * 32),
            (TensorType::IQ4_XS, 2 + 2 + 4, 4 * 256),
            (TensorType::TQ2_0, 2, 2 * 256),
            (TensorType::MXFP4, 1, 4 * 32),
            (TensorType::NVFP4, 4, 4 * 64),
            (TensorType::Q1_0, 2, 128),
            (TensorType::Q2_0, 2, 2 * 64),
        ];
        for (ty, side, bits) in blocks {
            assert_eq!(ty.block_bytes(), side + bits / 8, "{ty}");
        }
        assert_eq!(TensorType::TQ1_0.block_bytes(), 2 + 4 + 240 / 5);
        assert_eq!(TensorType::IQ1_M.block_bytes(), 256 / 8 + 256 / 16 + 256 / 32);
    }

    #[test]
    fn rows_are_whole_blocks_and_do_not_overflow() {
        assert_eq!(TensorType::F32.row_bytes(3), Some(12));
        assert_eq!(TensorType::Q6_K.row_bytes(576), None);
        assert_eq!(TensorType::F64.row_bytes(u64::MAX), None);
        assert_eq!(TensorType::Q1_0.row_bytes(0), Some(0));
    }
}

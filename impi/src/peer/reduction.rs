//! Element types, and the operations of Reduce and Scan on them.

/// A basic type of the specification's external format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "they say what they are")]
pub enum ElementType {
    Byte,
    Int8,
    Uint8,
    Int16,
    Uint16,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float,
    Double,
}

/// A predefined operation of MPI; all are commutative.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "MPI's names")]
pub enum Operator {
    Sum,
    Prod,
    Min,
    Max,
    Band,
    Bor,
    Bxor,
    Land,
    Lor,
}

impl ElementType {
    /// All of them, by their number in the C header.
    pub const ALL: [Self; 11] = [
        Self::Byte,
        Self::Int8,
        Self::Uint8,
        Self::Int16,
        Self::Uint16,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Float,
        Self::Double,
    ];

    /// Bytes of an element, the same in external32 and on the machines of today.
    pub fn size(self) -> usize {
        match self {
            Self::Byte | Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float => 4,
            Self::Int64 | Self::Uint64 | Self::Double => 8,
        }
    }
}

impl Operator {
    /// All of them, by their number in the C header.
    pub const ALL: [Self; 9] = [
        Self::Sum,
        Self::Prod,
        Self::Min,
        Self::Max,
        Self::Band,
        Self::Bor,
        Self::Bxor,
        Self::Land,
        Self::Lor,
    ];

    /// Whether it is defined for a type.
    pub fn takes(self, element: ElementType) -> bool {
        let float = matches!(element, ElementType::Float | ElementType::Double);
        !float || matches!(self, Self::Sum | Self::Prod | Self::Min | Self::Max)
    }

    /// Computes `other op own` into `own`, element by element.
    pub fn apply(self, element: ElementType, other: &[u8], own: &mut [u8]) {
        macro_rules! integers {
            ($type:ty) => {
                each(other, own, |a, b| {
                    let (a, b) = (<$type>::from_ne_bytes(a), <$type>::from_ne_bytes(b));
                    let value = match self {
                        Self::Sum => a.wrapping_add(b),
                        Self::Prod => a.wrapping_mul(b),
                        Self::Min => a.min(b),
                        Self::Max => a.max(b),
                        Self::Band => a & b,
                        Self::Bor => a | b,
                        Self::Bxor => a ^ b,
                        Self::Land => <$type>::from(a != 0 && b != 0),
                        Self::Lor => <$type>::from(a != 0 || b != 0),
                    };
                    value.to_ne_bytes()
                })
            };
        }
        macro_rules! floats {
            ($type:ty) => {
                each(other, own, |a, b| {
                    let (a, b) = (<$type>::from_ne_bytes(a), <$type>::from_ne_bytes(b));
                    let value = match self {
                        Self::Prod => a * b,
                        Self::Min => a.min(b),
                        Self::Max => a.max(b),
                        _ => a + b,
                    };
                    value.to_ne_bytes()
                })
            };
        }
        match element {
            ElementType::Byte | ElementType::Uint8 => integers!(u8),
            ElementType::Int8 => integers!(i8),
            ElementType::Int16 => integers!(i16),
            ElementType::Uint16 => integers!(u16),
            ElementType::Int32 => integers!(i32),
            ElementType::Uint32 => integers!(u32),
            ElementType::Int64 => integers!(i64),
            ElementType::Uint64 => integers!(u64),
            ElementType::Float => floats!(f32),
            ElementType::Double => floats!(f64),
        }
    }
}

fn each<const N: usize>(
    other: &[u8],
    own_data: &mut [u8],
    combine: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    for (other, own) in other
        .as_chunks::<N>()
        .0
        .iter()
        .zip(own_data.as_chunks_mut::<N>().0)
    {
        *own = combine(*other, *own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_compute_as_mpi_specifies() {
        let apply = |operator: Operator, a: i32, b: i32| {
            let mut own = b.to_ne_bytes();
            operator.apply(ElementType::Int32, &a.to_ne_bytes(), &mut own);
            i32::from_ne_bytes(own)
        };
        let results = Operator::ALL.map(|operator| apply(operator, 6, -3));
        assert_eq!(results, [3, -18, -3, 6, 6 & -3, 6 | -3, 6 ^ -3, 1, 1]);
        let mut own = 1.5_f64.to_ne_bytes();
        Operator::Sum.apply(ElementType::Double, &0.25_f64.to_ne_bytes(), &mut own);
        assert_eq!(f64::from_ne_bytes(own), 1.75);
        assert!(!Operator::Bxor.takes(ElementType::Float));
    }
}

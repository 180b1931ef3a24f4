//! The data types of messages in `external32`: big-endian, IEEE, without padding.
//!
//! Rule: user data is packed as external32. Source: IMPI 1.2.2. LAM/MPI 7.1.4 sends it in the byte order of its machine.

/// Byte order of messages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Representation {
    /// Big-endian, which the specification mandates.
    #[default]
    External32,
    /// Little-endian, which LAM uses on such machines.
    LittleEndian,
}

impl Representation {
    /// Turns elements of `size` bytes from the machine's order into this one, or back.
    pub fn convert(self, data: &mut [u8], size: usize) {
        let same = match self {
            Self::External32 => cfg!(target_endian = "big"),
            Self::LittleEndian => cfg!(target_endian = "little"),
        };
        if !same && size > 1 {
            data.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_big_endian_and_come_back() {
        let mut data: Vec<u8> = [0x1122_3344_u32, 5]
            .iter()
            .flat_map(|value| value.to_ne_bytes())
            .collect();
        let before = data.clone();
        Representation::External32.convert(&mut data, 4);
        assert_eq!(data, [0x11, 0x22, 0x33, 0x44, 0, 0, 0, 5]);
        Representation::External32.convert(&mut data, 4);
        assert_eq!(data, before);
        Representation::LittleEndian.convert(&mut data, 4);
        assert_eq!(data, [0x44, 0x33, 0x22, 0x11, 5, 0, 0, 0]);
    }
}

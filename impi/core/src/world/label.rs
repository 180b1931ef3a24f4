//! The labels of a start-up.

/// Labels of version 0.0, in the order in which they are sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(i32)]
#[allow(missing_docs, reason = "the specification's names")]
pub enum Label {
    Version = 0x1000,
    Hosts = 0x1100,
    Procs = 0x1200,
    DataLength = 0x1300,
    TagUpperBound = 0x1400,
    CrossoverSize = 0x1500,
    MaxLinear = 0x1600,
    HostAddress = 0x2000,
    HostPort = 0x2100,
    HostProcs = 0x2200,
    AckMark = 0x2300,
    HighWater = 0x2400,
    ProcAddress = 0x3000,
    ProcPid = 0x3100,
}

impl Label {
    /// All that 0.0 mandates.
    pub const ALL: [Self; 14] = [
        Self::Version,
        Self::Hosts,
        Self::Procs,
        Self::DataLength,
        Self::TagUpperBound,
        Self::CrossoverSize,
        Self::MaxLinear,
        Self::HostAddress,
        Self::HostPort,
        Self::HostProcs,
        Self::AckMark,
        Self::HighWater,
        Self::ProcAddress,
        Self::ProcPid,
    ];

    /// Returns the name in the specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::Version => "IMPI_C_VERSION",
            Self::Hosts => "IMPI_C_NHOSTS",
            Self::Procs => "IMPI_C_NPROCS",
            Self::DataLength => "IMPI_C_DATALEN",
            Self::TagUpperBound => "IMPI_C_TAGUB",
            Self::CrossoverSize => "IMPI_C_COLL_XSIZE",
            Self::MaxLinear => "IMPI_C_COLL_MAXLINEAR",
            Self::HostAddress => "IMPI_H_IPV6",
            Self::HostPort => "IMPI_H_PORT",
            Self::HostProcs => "IMPI_H_NPROCS",
            Self::AckMark => "IMPI_H_ACKMARK",
            Self::HighWater => "IMPI_H_HIWATER",
            Self::ProcAddress => "IMPI_P_IPV6",
            Self::ProcPid => "IMPI_P_PID",
        }
    }

    /// Returns the label of a number.
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|label| *label as i32 == number)
    }
}

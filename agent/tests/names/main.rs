//! One contract for every store of names (`--names`): a client that speaks as launchers do, over the rendezvous and over the
//! processes that keep names elsewhere, in real servers.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

#[macro_use(for_each_mpi, test)]
extern crate wireup_test_support;

mod command;
mod contract;
mod directory;
mod launches;
mod places;

use places::Place;
use wireup_test_support as common;

fn main() -> std::process::ExitCode {
    wireup_test_support::main()
}

/// One test for each store and sentence of the contract, named after both.
macro_rules! for_each_store {
    ($($store:ident)*) => {
        $(mod $store {
            for_each_store!(@tests $store
                name_is_unpublished_as_own_by_its_owner_only
                name_is_published_once_and_again_after_unpublish
                expired_name_can_be_published_again
                name_is_read_as_often_as_its_publisher_allows
                first_read_value_reaches_one_reader_or_returns
                only_persistent_names_outlive_launch
                names_of_process_end_with_it
                names_of_killed_launch_are_pruned
                lookup_waits_for_name_or_its_timeout
                ten_thousand_names_are_listed_found_and_unpublished
                launches_of_one_name_scope_see_only_their_names
                two_users_may_publish_same_name
                unreachable_store_refuses_with_reason_until_it_returns
            );
        })*
    };
    (@tests $store:ident $($name:ident)*) => {
        $(#[test]
        fn $name() {
            if let Some(place) = super::Place::$store() {
                super::contract::$name(&place);
            }
        })*
    };
}

for_each_store!(agents file etcd ldap);

#[test]
fn files_are_compatible_with_mpich_in_both_directions() {
    if let Some(place) = Place::file() {
        contract::files_are_compatible_with_mpich_in_both_directions(&place);
    }
}

#[test]
fn directory_writable_by_others_is_refused() {
    if let Some(place) = Place::file() {
        contract::directory_writable_by_others_is_refused(&place);
    }
}

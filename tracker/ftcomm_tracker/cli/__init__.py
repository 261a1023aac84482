"""The commands of ftcomm-tracker."""

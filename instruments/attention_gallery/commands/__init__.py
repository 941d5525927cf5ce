"""The commands that judge the gallery and write its pages."""

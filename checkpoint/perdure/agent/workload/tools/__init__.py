"""What every machine offers to people's scripts before `setup`: a login shell, python, pip, uv, conda and sudo."""

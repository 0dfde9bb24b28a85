# Numbers of a linear congruence by a shell's own arithmetic, a line each 400,
# until the file $1 is there or $2 lines are printed.
line=0 x=1
until [ -e "$1" ] || [ $line = "${2:-none}" ]; do
    line=$((line + 1)) step=0
    while [ $step -lt 400 ]; do
        step=$((step + 1))
        x=$(((x * 1103515245 + 12345 + step) % 2147483648))
    done
    echo "line $line $x end"
done

from fa_tutorial.figures import main

main()
